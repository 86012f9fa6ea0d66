"""The model card of a draft: its metadata, and one marked section; the rest is the author's own."""

import io
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from eagle3_interop.recipes.publish.section import Facts, section
from eagle3_interop.schemas.findings import refusal
from eagle3_interop.schemas.registry import library, serving
from eagle3_interop.schemas.report import AcceptanceReport

if TYPE_CHECKING:
    from huggingface_hub import EvalResult, ModelCard

BEGIN = "<!-- eagle3-interop: begin (every push rewrites this section) -->"
END = "<!-- eagle3-interop: end -->"
_BEGIN = re.compile(r"<!-- eagle3-interop: begin\b[^>]*-->")
_END = re.compile(r"<!-- eagle3-interop: end\b[^>]*-->")

DATASET = "eagle3-validate"
_NO_METADATA = "---\n{}\n---\n"

# Of the source's card, what stays true of the same weights in another layout.
_PASSED_ON = ("license", "license_name", "license_link", "language", "datasets")
_TAGS = ("speculative-decoding", "eagle3", "eagle3-interop")


def make_card(facts: Facts, existing: Sequence[str] = ()) -> "ModelCard":
    """The card to push.

    Args:
        facts: what there is to say.
        existing: texts of cards that are there already, the Hub's before the folder's own. The first
            that says anything is kept, with its metadata; the others fill in metadata that it lacks.

    Raises:
        Refused: a card's metadata or our marks in it cannot be read (code ``broken-card``).
    """
    from huggingface_hub import ModelCard

    cards = [_parse(text) for text in existing]
    kept = next((card for card in cards if card.text.strip()), None)
    card = kept or ModelCard(f"{_NO_METADATA}# {facts.repo_id.rpartition('/')[2]}\n")
    for other in cards:
        for key, value in vars(other.data).items():
            if card.data.get(key) is None:
                card.data[key] = value
    _describe(card, facts)
    card.text = with_section(card.text, section(facts, card.data.get("base_model")))
    return card


def metadata(text: str) -> dict[str, Any]:
    """The metadata of a card.

    Raises:
        Refused: it cannot be read (code ``broken-card``).
    """
    return dict(vars(_parse(text).data))


def _parse(text: str) -> "ModelCard":
    from huggingface_hub import ModelCard

    try:
        # Without a block of metadata the library warns that it found none.
        return ModelCard(text if text.lstrip().startswith("---") else f"{_NO_METADATA}{text}")
    except Exception as error:  # YAML's errors, and whatever a wrong type runs into
        reason = str(error).partition("\n")[0]
        message = f"the existing card's metadata cannot be read: {reason}"
        raise refusal("broken-card", "README.md", message, "Correct its YAML block.") from error


def _describe(card: "ModelCard", facts: Facts) -> None:
    """Metadata: what only we know is written, what the author may know better is filled in."""
    data: Any = card.data
    if facts.target and not data.get("base_model"):
        data["base_model"] = facts.target
    if data.get("base_model") and not data.get("base_model_relation"):
        # The Hub knows adapter, finetune, merge and quantized; a draft is trained from its target.
        data["base_model_relation"] = "finetune"
    for key in _PASSED_ON:
        if data.get(key) is None and facts.source.get(key) is not None:
            data[key] = facts.source[key]
    if not data.get("library_name"):
        data["library_name"] = library(facts.layout, facts.config)
    if not data.get("pipeline_tag"):
        data["pipeline_tag"] = "text-generation"
    data["tags"] = list(dict.fromkeys([*(data.get("tags") or []), *_TAGS, *serving(facts.layout)]))
    _evaluate(data, facts)


def _evaluate(data: Any, facts: Facts) -> None:  # noqa: ANN401
    """The model-index: our figures beside whatever the author lists."""
    others = [item for item in data.eval_results or [] if item.dataset_type != DATASET]
    results = [*others, *_results(facts.report.acceptance)]
    data.eval_results = results or None
    if results and not data.model_name:
        data.model_name = facts.repo_id.rpartition("/")[2]


def _results(acceptance: AcceptanceReport | None) -> "list[EvalResult]":
    if acceptance is None:
        return []
    length = _result("accept-length", "Accept length (tokens a step)", acceptance.accept_length)
    length.metric_args = _settings(acceptance) or None
    shares = [
        _result(f"acceptance-at-{position}", f"Acceptance at position {position}", rate)
        for position, rate in enumerate(acceptance.rates, 1)
    ]
    return [length, *shares]


def _result(metric: str, name: str, value: float) -> "EvalResult":
    from huggingface_hub import EvalResult

    return EvalResult(
        task_type="text-generation",
        task_name="Speculative decoding",
        dataset_type=DATASET,
        dataset_name="Prompts of the validation",
        metric_type=metric,
        metric_name=name,
        metric_value=round(value, 4),
    )


def _settings(acceptance: AcceptanceReport) -> dict[str, Any]:
    values = {
        "num_draft_tokens": acceptance.num_draft_tokens,
        "tree": acceptance.tree and list(acceptance.tree),
        "tokens": acceptance.tokens,
    }
    return {key: value for key, value in values.items() if value is not None}


def with_section(text: str, ours: str) -> str:
    """A card's text with our section in its place, or at its end; the rest stays as it was.

    Raises:
        Refused: the marks of our section are damaged (code ``broken-card``).
    """
    begins, ends = list(_BEGIN.finditer(text)), list(_END.finditer(text))
    newline = "\r\n" if "\r\n" in text else "\n"
    ours = f"{BEGIN}\n{ours.strip()}\n{END}".replace("\n", newline)
    if not begins and not ends:
        return (
            f"{text.rstrip()}{newline * 2}{ours}{newline}" if text.strip() else f"{ours}{newline}"
        )
    if len(begins) != 1 or len(ends) != 1 or begins[0].end() > ends[0].start():
        message = "the marks around the section of eagle3-interop are not one begin before one end."
        fix = "Delete them; a new section is then added at the end."
        raise refusal("broken-card", "README.md", message, fix)
    return text[: begins[0].start()] + ours + text[ends[0].end() :]


def draw(acceptance: AcceptanceReport) -> bytes | None:
    """The acceptance plot as PNG; None without figures, or without matplotlib (the ``validate`` extra)."""
    if not acceptance.rates:
        return None
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return None
    figure = Figure(figsize=(6, 3), dpi=120, layout="constrained")
    axes = figure.subplots()
    positions = range(1, len(acceptance.rates) + 1)
    axes.bar(positions, acceptance.rates, color="#3b6ea5")
    axes.set(ylim=(0, 1), xticks=list(positions), xlabel="draft position", ylabel="accepted")
    axes.set_title(f"{acceptance.accept_length:.2f} tokens a step")
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()
