"""Every way to wire a trained draft wrongly, alone and in pairs: does the diagnosis find the way back?

    python benchmarks/diagnose_grid.py [DRAFT ...] [--pairs] [--write docs/diagnose_grid.md]

The drafts of ``tests/data/drafts`` are trained, so their own wiring is the truth. A case takes a wrong one
for the configured wiring and asks `diagnose`. The target's pass is shared by all, and every score of a draft
is computed once.
"""

import argparse
import itertools
import json
import resource
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch

from eagle3_interop.convert import api
from eagle3_interop.validators.diagnose.scoring import Evaluator, order_texts
from eagle3_interop.validators.diagnose.suspect import subject_of
from eagle3_interop.validators.diagnose.verdict import diagnose, indistinguishable
from eagle3_interop.validators.diagnose.wiring import NORMED, STREAM, SUBLAYER, Wiring
from eagle3_interop.validators.target.captured import Streams, capture
from eagle3_interop.validators.target.prompts import read_prompts
from eagle3_interop.validators.target.running import Target
from eagle3_interop.validators.target.texts import encode
from eagle3_interop.validators.target.writing import write_texts

DATA = Path(__file__).resolve().parents[1] / "tests" / "data"

PAIRED = (
    "residual",
    "feedback",
    "head_norm=off",
    "order",
    "shift=1",
    "rope=theta 1e+06",
    "map=absent",
    "entry_norms",
    "input_norm",
    "block_norms",
    "qk_norm",
    "later_norms",
    "taps - 1",
    "taps reversed",
    "reads sublayer",
)
"""Of each kind, the one that takes part in pairs (by the beginning of its name)."""


Case = tuple[str, str, str, str, int]
"""Draft, configured wiring, outcome, detail, wirings tried."""


def captured(
    prompts: int, new_tokens: int, sieve: int | None = None
) -> tuple[Target, Streams, int]:
    """The target, and its streams over the pair's own prompts."""
    target = Target.load(DATA / "target")
    encoded = encode(read_prompts(DATA / "prompts.jsonl"), None, target.vocabulary_size)
    texts = write_texts(target, encoded[:prompts], new_tokens, 5).texts
    ordered, count = order_texts(texts)
    return target, capture(target, ordered), sieve or count


def evaluator_of(name: str, target: Target, streams: Streams, sieve: int) -> Evaluator:
    """Of one draft."""
    folder = str(DATA / "drafts" / name)
    loaded = api.load(folder, "auto", api.Options(target=str(DATA / "target")))
    subject = subject_of(loaded, target, device=torch.device("cpu"), dtype=torch.float32)
    return Evaluator(subject, target, streams, sieve)


def singles(evaluator: Evaluator) -> dict[str, Wiring]:
    """Every single way to be wrong, by name: each flag's other values, taps, reads."""
    subject, depth = evaluator.subject, evaluator.streams.depth
    truth = subject.configured
    found = {
        f"{name}={value}": truth.with_flag(name, value)
        for name, values in subject.options.items()
        for value in values
        if value != truth.flag(name)
    }
    taps = truth.taps
    wrong = {
        "taps + 1": tuple(tap + 1 for tap in taps),
        "taps - 1": tuple(tap - 1 for tap in taps),
        "taps reversed": taps[::-1],
        "taps shifted up": (*taps[1:], depth),
        "taps shifted down": (0, *taps[:-1]),
        "first tap 0": (0, *taps[1:]),
        "last tap L": (*taps[:-1], depth),
    }
    for name, one in wrong.items():
        if one != taps and all(0 <= tap <= depth for tap in one):
            found[name] = replace(truth, taps=one)
    for read in (SUBLAYER, NORMED):
        found[f"reads {read}"] = _reading(evaluator, read)
        for block, tap in enumerate(taps):
            if read in evaluator.streams.reads(tap):
                found[f"block {block} reads {read}"] = truth.with_block(block, tap, read)
    return {name: wiring for name, wiring in found.items() if wiring != truth}


def _reading(evaluator: Evaluator, read: str) -> Wiring:
    truth = evaluator.subject.configured
    fits = [read if read in evaluator.streams.reads(tap) else STREAM for tap in truth.taps]
    return replace(truth, reads=tuple(fits))


def pairs(evaluator: Evaluator) -> dict[str, Wiring]:
    """Two ways at once, of different kinds."""
    chosen = {}
    for kind in PAIRED:
        name = next((one for one in singles(evaluator) if one.startswith(kind)), None)
        if name is not None:
            chosen[name] = singles(evaluator)[name]
    truth = evaluator.subject.configured
    return {
        f"{one} + {other}": merged
        for one, other in itertools.combinations(chosen, 2)
        if (merged := _merged(truth, chosen[one], chosen[other])) is not None
        and _readable(evaluator, merged)
    }


def _merged(truth: Wiring, one: Wiring, other: Wiring) -> Wiring | None:
    """Both changes in one wiring; None where they are of one kind."""
    merged = one
    for name, value in other.flags:
        if value != truth.flag(name):
            if one.flag(name) != truth.flag(name):
                return None
            merged = merged.with_flag(name, value)
    for part in ("taps", "reads"):
        theirs, plain = getattr(other, part), getattr(truth, part)
        if theirs != plain:
            if getattr(one, part) != plain:
                return None
            merged = replace(merged, **{part: theirs})
    return merged


def _readable(evaluator: Evaluator, wiring: Wiring) -> bool:
    places = zip(wiring.taps, wiring.reads, strict=True)
    return all(read in evaluator.streams.reads(tap) for tap, read in places)


def outcome(evaluator: Evaluator, wrong: Wiring) -> tuple[str, str, int]:
    """What a diagnosis that begins at a wrong wiring ends in, in a word and in detail; wirings tried.

    ``found``: the wiring that the draft was trained with. ``equivalent``: one that the texts cannot tell from
    it, and that the report says so of. ``no effect``: the wrong wiring itself is such a one. ``missed``: neither.
    """
    truth = evaluator.result(evaluator.subject.configured)
    found = diagnose(evaluator, wrong)
    if found.best.wiring == truth.wiring:
        return "found", "", found.tried
    detail = "; ".join(found.best.wiring.changes(truth.wiring))
    detail += f" ({found.best.gain(truth):+.4f})"
    said = [*(one.wiring for one in found.equivalent), *found.idle]
    if truth.wiring in said:
        return ("no effect" if found.best.wiring == wrong else "equivalent"), detail, found.tried
    if indistinguishable(found.best, truth):
        return "equivalent, unsaid", detail, found.tried
    return "missed", detail, found.tried


def cases(evaluator: Evaluator, *, with_pairs: bool) -> Iterator[tuple[str, str, str, int]]:
    """Name, outcome, detail and wirings tried of every case of a draft."""
    wanted = singles(evaluator) | (pairs(evaluator) if with_pairs else {})
    for name, wrong in wanted.items():
        yield (name, *outcome(evaluator, wrong))


def page(rows: list[Case], said: list[str]) -> str:
    """The committed result."""
    kinds = ("found", "no effect", "equivalent", "equivalent, unsaid", "missed")
    lines = [
        "# The grid of wrong wirings",
        "",
        "Written by `make diagnose` (`benchmarks/diagnose_grid.py`). Each trained draft of",
        "`tests/data/drafts` is diagnosed from every single wrong wiring and from pairs of them; its own",
        "wiring is the truth. *found*: the diagnosis ends in it. *no effect*: the wrong wiring computes the",
        "same, as far as the texts can tell, and the report names the true one as equivalent. *equivalent*:",
        "it ends in another one that cannot be told from the truth, and says so. *missed*: none of these.",
        "",
        *said,
        "",
        "| draft | cases | of them pairs | " + " | ".join(kinds) + " | wirings tried, median |",
        "|---" * (len(kinds) + 4) + "|",
    ]
    for draft in dict.fromkeys(row[0] for row in rows):
        mine = [row for row in rows if row[0] == draft]
        counts = Counter(row[2] for row in mine)
        tried = sorted(row[4] for row in mine)[len(mine) // 2]
        numbers = " | ".join(str(counts[kind]) for kind in kinds)
        double = sum(" + " in row[1] and row[1] != "taps + 1" for row in mine)
        lines.append(f"| `{draft}` | {len(mine)} | {double} | {numbers} | {tried} |")
    lines += ["", "## Every case that did not end in the truth itself", ""]
    lines += [
        "| draft | configured | outcome | best wiring against the truth (gain in nats) |",
        "|---|---|---|---|",
    ]
    lines += [f"| `{d}` | {c} | {o} | {x} |" for d, c, o, x, _ in rows if o != "found"]
    return "\n".join(lines) + "\n"


def run(options: argparse.Namespace) -> tuple[list[Case], float]:
    """Every case, told as it ends, and the seconds of CPU."""
    target, streams, sieve = captured(options.prompts, options.new_tokens)
    rows: list[Case] = []
    known = json.loads((DATA / "acceptance.json").read_text())
    for draft in options.drafts or known:
        evaluator = evaluator_of(draft, target, streams, sieve)
        for name, end, detail, tried in cases(evaluator, with_pairs=options.pairs):
            rows.append((draft, name, end, detail, tried))
            print(*rows[-1], sep="\t", flush=True)
    spent = resource.getrusage(resource.RUSAGE_SELF).ru_utime
    print(f"# {spent:.0f}", flush=True)
    return rows, spent


def told(paths: list[Path]) -> tuple[list[Case], float]:
    """The same of runs that were kept: what they printed."""
    rows: list[Case] = []
    spent = 0.0
    for line in (line for path in paths for line in path.read_text().splitlines()):
        if line.startswith("# "):
            spent += float(line[2:])
            continue
        draft, name, end, detail, tried = line.split("\t")
        rows.append((draft, name, end, detail, int(tried)))
    return rows, spent


def main() -> None:
    """Run the grid, or gather runs that each did some drafts."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("drafts", nargs="*", help="all of them unless named")
    parser.add_argument("--pairs", action="store_true", help="pairs of ways as well")
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--new-tokens", type=int, default=40)
    parser.add_argument("--rows", type=Path, nargs="*", help="what earlier runs printed")
    parser.add_argument("--write", type=Path, help="the page")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows, spent = told(options.rows) if options.rows else run(options)
    cost = f", {spent:.0f} s of one CPU core in all" if spent else ""
    said = [
        f"{options.prompts} prompts of 48 tokens, {options.new_tokens} new tokens each; {len(rows)} cases{cost}."
    ]
    if options.write:
        options.write.write_text(page(rows, said), encoding="utf-8")
    if any(row[2] in ("missed", "equivalent, unsaid") for row in rows):
        sys.exit(1)


if __name__ == "__main__":
    main()
