"""How often is a draft that is wired as it was trained told to be wired otherwise? And is one that is not found?

    python benchmarks/diagnose_alarms.py [--smollm2 build/smollm2] [--write docs/diagnose_alarms.md]

Drafts, each diagnosed from the wiring that its config says, on texts of several kinds and on few of them and many.
*Right* drafts were trained with that wiring: any other answer is a false alarm. *Shifted* ones were trained on the
features of the position after or before their token's, which no config can say: the answer has to be that shift.
"""

import argparse
import json
import random
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from eagle3_interop.convert import api
from eagle3_interop.validators.diagnose.scoring import Evaluator, order_texts
from eagle3_interop.validators.diagnose.suspect import subject_of
from eagle3_interop.validators.diagnose.verdict import Diagnosis, diagnose
from eagle3_interop.validators.target.captured import Streams, capture
from eagle3_interop.validators.target.prompts import Prompt, bundled_prompts, read_prompts
from eagle3_interop.validators.target.running import Target
from eagle3_interop.validators.target.texts import Text, encode, load_tokenizer
from eagle3_interop.validators.target.writing import write_texts

DATA = Path(__file__).resolve().parents[1] / "tests" / "data"

COUNTS = (1, 3, 6, 12, 40)
"""Texts of a diagnosis; of each set as many as it has."""


@dataclass(frozen=True)
class Pair:
    """A target, drafts for it, and what they were trained as.

    Attributes:
        name: for the table.
        target: folder.
        drafts: folder of each, with the shift that it was trained with.
        own: prompts like those of the training.
        new_tokens: of each text.
    """

    name: str
    target: Path
    drafts: dict[Path, int]
    own: Path
    new_tokens: int


@dataclass(frozen=True)
class Case:
    """One diagnosis.

    Attributes:
        pair: its name.
        draft: its name.
        shift: that it was trained with.
        texts: the set that they are of.
        count: of texts.
        verdict: of the diagnosis.
        changes: of the best wiring against the configured one.
        shift_found: of the best wiring.
        gain: of the best wiring, in nats, and its interval.
        supported: ``--write`` would write it.
        lengths: accept length as configured, and of the best.
    """

    pair: str
    draft: str
    shift: int
    texts: str
    count: int
    verdict: str
    changes: str
    shift_found: int
    gain: tuple[float, float, float]
    supported: bool
    lengths: tuple[float, float]

    @property
    def alarm(self) -> bool:
        """A right draft was told to be wrong."""
        return self.shift == 0 and self.verdict == "better-wiring"


def tiny() -> Pair:
    """The pair in the repository."""
    known = json.loads((DATA / "acceptance.json").read_text())
    drafts = {DATA / "drafts" / name: 0 for name in known}
    drafts |= {DATA / "shifted" / "ahead": 1, DATA / "shifted" / "behind": -1}
    present = {folder: shift for folder, shift in drafts.items() if folder.exists()}
    return Pair("tiny", DATA / "target", present, DATA / "prompts.jsonl", 40)


def smollm2(folder: Path) -> Pair:
    """What `make smollm` made."""
    shifts = {"ahead": 1, "behind": -1}
    drafts = {
        one.parent: shifts.get(one.parent.name, 0)
        for one in sorted((folder / "drafts").glob("*/config.json"))
    }
    return Pair("SmolLM2-135M", folder / "target", drafts, folder / "drafts" / "prompts.jsonl", 64)


def prompt_sets(pair: Pair, vocabulary: int) -> dict[str, list[Prompt]]:
    """Texts like those of the training, the package's own, and noise."""
    generator = random.Random(0)  # noqa: S311
    noise = [
        Prompt(token_ids=tuple(generator.randrange(vocabulary) for _ in range(24)))
        for _ in range(12)
    ]
    return {"own": read_prompts(pair.own)[:40], "package": bundled_prompts(), "noise": noise}


def written(pair: Pair, target: Target, names: list[str], kept: Path | None) -> dict[str, Streams]:
    """Each set's texts and streams; kept in a folder between runs, if there is one."""
    tokenizer = load_tokenizer(pair.target, trust_remote_code=False)
    found = {}
    sets = prompt_sets(pair, target.vocabulary_size)
    for name, prompts in ((name, sets[name]) for name in names):
        file = kept / f"{pair.name}-{name}.pt" if kept else None
        if file is None or not file.exists():
            encoded = encode(prompts, tokenizer, target.vocabulary_size)
            texts = write_texts(target, encoded, pair.new_tokens, 5).texts
            streams = capture(target, texts)
            if file is not None:
                torch.save(streams, file)
        else:
            streams = torch.load(file, weights_only=False)
        found[name] = streams
    return found


def part(streams: Streams, count: int) -> tuple[Streams, int]:
    """The streams of so many of the texts, spread over all, as a search wants them; and the size of its sieve."""
    texts = list(streams.texts)
    chosen: list[Text] = [texts[i * len(texts) // count] for i in range(min(count, len(texts)))]
    ordered, sieve = order_texts(chosen)
    places, offsets, first = [], [], 0
    for text in ordered:
        at = streams.offsets[next(i for i, one in enumerate(texts) if one is text)]
        places.append(torch.arange(at, at + len(text)))
        offsets.append(first)
        first += len(text)
    rows = torch.cat(places)
    kept = {place: stream[rows] for place, stream in streams.kept.items()}
    return Streams(ordered, offsets, streams.depth, streams.final[rows], kept, streams.scale), sieve


def cases(pair: Pair, options: argparse.Namespace) -> Iterator[Case]:
    """Every diagnosis of a pair."""
    target = Target.load(pair.target)
    sets = written(pair, target, options.sets, options.keep)
    for folder, shift in pair.drafts.items():
        if options.drafts and folder.name not in options.drafts:
            continue
        loaded = api.load(str(folder), "auto", api.Options(target=str(pair.target)))
        subject = subject_of(loaded, target, device=torch.device("cpu"), dtype=torch.float32)
        for name, streams in sets.items():
            sizes = {min(count, len(streams.texts)) for count in options.counts}
            for count in sorted(sizes):
                some, sieve = part(streams, count)
                answer = diagnose(Evaluator(subject, target, some, sieve))
                yield case(pair, folder.name, shift, name, count, answer)


def case(pair: Pair, draft: str, shift: int, texts: str, count: int, found: Diagnosis) -> Case:
    """What became of one."""
    best, configured = found.best, found.configured or found.best
    interval = best.gain_interval(configured) if best is not configured else (0.0, 0.0)
    return Case(
        pair.name,
        draft,
        shift,
        texts,
        count,
        found.verdict,
        "; ".join(best.wiring.changes(configured.wiring)),
        int(best.wiring.flag("shift")),
        (best.gain(configured), *interval),
        found.verdict == "better-wiring" and not found.unsupported,
        (configured.accept_length, best.accept_length),
    )


def page(rows: list[Case]) -> str:
    """The committed result."""
    right = [row for row in rows if row.shift == 0]
    alarms = [row for row in right if row.alarm]
    shifted = [row for row in rows if row.shift]
    lines = [
        "# False alarms, and what is found",
        "",
        "Written by `benchmarks/diagnose_alarms.py`, which says what is diagnosed. *right*: the configured wiring is",
        "the best, as it was trained. *none*: the draft drafts nothing on these texts. *alarm*: another wiring is said",
        "to fit better; *written*: `--write` would write it. *own*: texts like those of the training, *package*: the",
        "package's forty prompts, *noise*: what the target makes of random tokens.",
        "",
        f"**{len(alarms)} false alarms in {len(right)} diagnoses of right drafts, {sum(a.supported for a in alarms)} of",
        "them written.**",
        "",
        "| pair | texts | number of them | diagnoses | right | none | alarm | written |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for pair, texts, count in dict.fromkeys((row.pair, row.texts, row.count) for row in right):
        mine = [row for row in right if (row.pair, row.texts, row.count) == (pair, texts, count)]
        verdicts = [row.verdict for row in mine]
        lines.append(
            f"| {pair} | {texts} | {count} | {len(mine)} | {verdicts.count('configured-is-best')} | "
            f"{verdicts.count('no-match')} | {verdicts.count('better-wiring')} | {sum(row.supported for row in mine)} |"
        )
    if alarms:
        lines += ["", "## Every false alarm", "", *_told(alarms)]
    if shifted:
        lines += [
            "",
            "## Drafts that were trained with a shift",
            "",
            f"The shift is found in {sum(row.shift_found == row.shift for row in shifted)} of {len(shifted)} diagnoses.",
            "",
            *_told(shifted),
        ]
    return "\n".join(lines) + "\n"


def _told(rows: list[Case]) -> list[str]:
    lines = [
        "| pair | draft | texts | number | best wiring | gain in nats | accept length, configured and best | written |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        gain, low, high = row.gain
        lines.append(
            f"| {row.pair} | `{row.draft}` | {row.texts} | {row.count} | {row.changes or 'as configured'} | {gain:.2f} "
            f"({low:.2f} to {high:.2f}) | {row.lengths[0]:.2f}, {row.lengths[1]:.2f} | {'yes' if row.supported else 'no'} |"
        )
    return lines


def main() -> None:
    """Diagnose, and write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--smollm2", type=Path, help="folder of `make smollm`")
    parser.add_argument("--only-smollm2", action="store_true", help="not the tiny pair")
    parser.add_argument("--drafts", nargs="*", help="all of them unless named")
    parser.add_argument("--counts", nargs="*", type=int, default=COUNTS, help="of texts")
    parser.add_argument("--sets", nargs="*", default=["own", "package", "noise"], help="of texts")
    parser.add_argument("--keep", type=Path, help="folder to keep texts and streams in")
    parser.add_argument(
        "--rows", type=Path, nargs="*", default=[], help="what earlier runs printed"
    )
    parser.add_argument("--write", type=Path, help="the page")
    options = parser.parse_args()
    torch.set_num_threads(1)
    lines = [line for path in options.rows for line in path.read_text().splitlines()]
    rows = [Case(**json.loads(line)) for line in lines]
    pairs = [] if options.only_smollm2 or options.rows else [tiny()]
    if options.smollm2 and not options.rows:
        pairs.append(smollm2(options.smollm2))
    for pair in pairs:
        for row in cases(pair, options):
            rows.append(row)
            print(json.dumps(asdict(row)), flush=True)
    if options.write:
        options.write.write_text(page(rows), encoding="utf-8")
    if any(row.alarm for row in rows):
        sys.exit(1)


if __name__ == "__main__":
    main()
