"""Recording from SGLang, started for it or running: it serves the target, and hands out its hidden states.

The taps come in one start. The last hidden state comes in a second one (SGLang returns the one or the others),
in which the texts that were written in the first are read again; or it is left out, and the likeliest tokens
of each place stand for the target's distribution.
"""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

from eagle3_interop.schemas.dialects.base import TargetFacts
from eagle3_interop.schemas.engines.recording import (
    SGLANG_SINCE,
    sglang_flags,
    sglang_last_flags,
)
from eagle3_interop.schemas.engines.sglang import ids_to_taps, taps_to_ids
from eagle3_interop.schemas.engines.targets import SGLANG_CAPTURES_THE_END, special_class
from eagle3_interop.schemas.findings import Unavailable, Usage
from eagle3_interop.schemas.streams import RecordedBy
from eagle3_interop.validators.engines.running import GENERATE_S, asked, checked_url
from eagle3_interop.validators.engines.started import StartedEngine
from eagle3_interop.validators.record.answers import composed, tensors_of, tokens_of
from eagle3_interop.validators.record.record import Offer, Written
from eagle3_interop.validators.record.started import (
    check_arguments,
    check_release,
    files_of,
    version_of,
)
from eagle3_interop.validators.record.store import Plan
from eagle3_interop.validators.record.wish import Wish
from eagle3_interop.validators.report import provenance
from eagle3_interop.validators.target.running import Progress
from eagle3_interop.validators.target.tables import TargetTables

TOP = 20
"""Likeliest tokens of each place that are kept where the last hidden state is not."""

PARTS = ".parts"
"""Folder, inside the recording, of what a first start wrote and a second one completes."""


@dataclass
class SGLangStarted:
    """An SGLang that is started for recording.

    Attributes:
        wish: the user's.
        engine: its Python and flags.
        last_state: record the last hidden state as well, in a second start.
    """

    wish: Wish
    engine: StartedEngine
    last_state: bool = True

    def offer(self, taps: tuple[int, ...], held: TargetTables) -> Offer:
        """Taps that its class of this target captures."""
        check_arguments(self.engine.arguments)
        version = version_of(self.engine, "sglang", SGLANG_SINCE)
        kept = capturable(taps, held, told=self.wish.taps is not None)
        return Offer(
            RecordedBy(engine="sglang", version=version, how="started"),
            kept,
            "post-norm" if self.last_state else "absent",
            "last-state" if self.last_state else "top-logprobs",
        )

    def texts(
        self, plan: Plan, skip: int, held: TargetTables, progress: Progress | None
    ) -> Iterator[Written]:
        """What one start wrote, completed by a second one where the last state is wanted."""
        parts = self.wish.out / PARTS
        parts.mkdir(exist_ok=True)
        numbers = list(range(skip, len(plan.prompts)))
        first = self._first(plan, numbers, parts, held, progress)
        for number, path in (
            first if plan.last == "absent" else self._second(plan, numbers, first, parts)
        ):
            yield composed(plan, number, load_file(path), held)
            path.unlink()
        shutil.rmtree(parts, ignore_errors=True)

    def _first(
        self,
        plan: Plan,
        numbers: Sequence[int],
        parts: Path,
        held: TargetTables,
        progress: Progress | None,
    ) -> Iterator[tuple[int, Path]]:
        """Texts and taps; those of an interrupted run are taken up."""
        missing = [number for number in numbers if not (parts / f"{number}.safetensors").exists()]
        new = plan.new_tokens + plan.lookahead + 1
        ids = capture_ids(plan.taps, held)
        request = self._request(plan, sglang_flags(ids), 0 if plan.last != "absent" else TOP)
        request["jobs"] = [
            {"number": n, "input_ids": plan.prompts[n], "max_new_tokens": new} for n in missing
        ]
        with closing(files_of(self.engine, "record_sglang.py", request, parts, missing)) as coming:
            for number in numbers:
                path = next(coming) if number in missing else parts / f"{number}.safetensors"
                if progress is not None:
                    progress(plan.new_tokens + plan.lookahead)
                yield number, path

    def _second(
        self, plan: Plan, numbers: Sequence[int], first: Iterator[tuple[int, Path]], parts: Path
    ) -> Iterator[tuple[int, Path]]:
        """The last hidden state of the texts that are there now, read in one go each."""
        jobs, paths = [], {}
        for number, path in first:
            tokens = tokens_of(plan, number, load_file(path)["output_ids"].tolist())
            jobs.append({"number": number, "input_ids": tokens, "max_new_tokens": 1})
            paths[number] = path
        folder = parts / "last"
        folder.mkdir(exist_ok=True)
        for old in folder.glob("*.safetensors"):
            old.unlink()
        request = {**self._request(plan, sglang_last_flags(), 0), "jobs": jobs}
        for number, last in zip(
            numbers,
            files_of(self.engine, "record_sglang.py", request, folder, numbers),
            strict=True,
        ):
            path = paths[number]
            tensors = {**load_file(path), "last": load_file(last)["states"]}
            whole = path.with_name(f".{path.name}.part")
            save_file(tensors, whole)
            whole.replace(path)
            last.unlink()
            yield number, path
        with suppress(OSError):
            folder.rmdir()

    def _request(self, plan: Plan, flags: Sequence[str], top: int) -> dict[str, Any]:
        remote = ["--trust-remote-code"] if self.wish.trust_remote_code else []
        target = provenance.target_folder(self.wish.target)
        argv = [f"--model-path={target}", f"--dtype={plan.dtype}", "--skip-tokenizer-init"]
        return {"argv": [*argv, *flags, *remote, *self.engine.arguments], "top": top}


def started(wish: Wish, engine: StartedEngine, *, last_state: bool) -> SGLangStarted:
    """The recorder that the command asks for."""
    return SGLangStarted(wish, engine, last_state)


@dataclass
class SGLangServer:
    """An SGLang that runs, started for recording.

    Attributes:
        wish: the user's.
        url: where it listens.
    """

    wish: Wish
    url: str
    _info: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def offer(self, taps: tuple[int, ...], held: TargetTables) -> Offer:
        """What it was started to hand out.

        Raises:
            Usage: the user wants other taps.
            Unavailable: it is no SGLang, too old, or was started otherwise.
        """
        base = checked_url(self.url)
        info = asked(f"{base}/server_info", missing_ok=True)
        if not info.get("version"):
            raise Unavailable(
                f"{base} does not answer as SGLang does; vLLM records when it is started for it: --engine vllm"
            )
        version = str(info["version"])
        check_release("SGLang", version, SGLANG_SINCE)
        self._info = info
        ids = info.get("return_aux_hidden_state_layer_ids")
        wish = capturable(taps, held, told=self.wish.taps is not None)
        command = " ".join(sglang_flags(capture_ids(wish, held)))
        if not info.get("enable_return_aux_hidden_states") or not ids:
            raise Unavailable(
                f"SGLang {version} at {base} was not started to hand out hidden states; start it without a draft "
                f"and with: {command}"
            )
        self._check_whole(base, command)
        found = tuple(sorted(ids_to_taps(list(ids), facts_of(held))))
        if self.wish.taps is not None and set(wish) - set(found):
            raise Usage(f"--taps: the server hands out taps {list(found)}; leave the option out.")
        by = RecordedBy(engine="sglang", version=version, how="server")
        return Offer(by, found, "absent", "top-logprobs")

    def _check_whole(self, base: str, command: str) -> None:
        """A cached prefix or an unfinished chunk would be missing from the answers."""
        info = self._info
        chunk = info.get("chunked_prefill_size")
        wrong = []
        if not info.get("disable_radix_cache"):
            wrong.append("its radix cache is on")
        if isinstance(chunk, int) and chunk > 0:
            wrong.append(f"it splits prompts into chunks of {chunk}")
        if int(info.get("pp_size") or 1) != 1:
            wrong.append("it is spread over pipeline stages")
        if wrong:
            raise Unavailable(
                f"SGLang at {base} would hand out fewer hidden states than tokens: {', '.join(wrong)}; start it "
                f"with: {command}"
            )

    def texts(
        self, plan: Plan, skip: int, held: TargetTables, progress: Progress | None
    ) -> Iterator[Written]:
        """One request at a time; the next is under way while this one is written."""
        base, numbers = checked_url(self.url), range(skip, len(plan.prompts))
        with ThreadPoolExecutor(1) as pool:
            coming: Future[dict[str, Any]] | None = None
            for number in numbers:
                answer = (coming or pool.submit(self._ask, base, plan, number)).result()
                more = number + 1 in numbers
                coming = pool.submit(self._ask, base, plan, number + 1) if more else None
                if progress is not None:
                    progress(plan.new_tokens + plan.lookahead)
                yield composed(plan, number, tensors_of(answer), held)

    def _ask(self, base: str, plan: Plan, number: int) -> dict[str, Any]:
        body = {
            "input_ids": plan.prompts[number],
            "sampling_params": {
                "temperature": 0.0,
                "max_new_tokens": plan.new_tokens + plan.lookahead + 1,
                "ignore_eos": True,
            },
            "return_hidden_states": True,
            "return_logprob": True,
            "top_logprobs_num": TOP,
        }
        return asked(f"{base}/generate", body, limit=GENERATE_S)


def facts_of(held: TargetTables) -> TargetFacts:
    """What decides how this target's class reads ids."""
    known = held.checkpoint.facts
    return TargetFacts(
        name=held.checkpoint.path,
        hidden_size=known.hidden_size,
        layers=held.depth,
        vocab_size=held.vocabulary_size,
        model_type=known.model_type or "",
        architectures=known.architectures,
    )


def capturable(taps: Sequence[int], held: TargetTables, *, told: bool) -> tuple[int, ...]:
    """The taps that SGLang captures of this target: never the embedding, of most classes not the end.

    Args:
        taps: to record.
        held: the target.
        told: the user named them.

    Raises:
        Usage: what the user named cannot be captured, or nothing is left.
    """
    end = special_class(facts_of(held)) in SGLANG_CAPTURES_THE_END
    if told and held.depth in taps and not end:
        raise Usage(
            f"--taps {held.depth}: SGLang does not capture after the last layer of this target; leave it out, or "
            "record through transformers."
        )
    if told and 0 in taps and held.scales_embeddings:
        raise Usage(
            "--taps 0: this target scales its embeddings, which SGLang does not hand out; record through "
            "transformers."
        )
    kept = tuple(tap for tap in sorted(taps) if tap and (tap < held.depth or end))
    if not kept:
        raise Usage(
            "--taps: SGLang hands out the stream after the first layer and later; name one."
        )
    return kept


def capture_ids(taps: Sequence[int], held: TargetTables) -> list[int]:
    """SGLang's ids of these taps, in its own convention for this target.

    Raises:
        Usage: this target's class has none for these.
    """
    facts = facts_of(held)
    ids = taps_to_ids(list(taps), facts)
    if sorted(ids_to_taps(ids, facts)) != sorted(taps) or min(ids) < 0:
        raise Usage(
            f"--taps {list(taps)}: SGLang's class of this target cannot be asked for just these."
        )
    return ids
