"""Recorded hidden states: the manifest ``streams.json``, and what a report says of where they came from.

``docs/recording.md`` explains each key.
"""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

MANIFEST = "streams.json"
PARTIAL = "streams.partial.json"
"""The manifest of a recording that is not finished; no reader takes it for one that is."""

Last = Literal["pre-norm", "post-norm", "absent"]
"""The target's last hidden state: before its final norm, after it, or not recorded."""

Recorder = Literal["transformers", "sglang", "vllm", "speculators", "specforge"]
Basis = Literal["last-state", "top-logprobs", "text"]


class _Part(BaseModel):
    """Frozen; a key that is not known here is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class RecordedTarget(_Part):
    """The target that was recorded.

    Attributes:
        path: folder or Hub id, as it was given.
        revision: the Hub's commit, where known.
        model_type: of its config.
        layers: decoder layers, L.
        hidden_size: width of its residual stream.
        vocab_size: rows of its embedding table.
        sha256: of its embedding table, final norm and head, as they are stored.
    """

    path: str
    revision: str | None = None
    model_type: str | None = None
    layers: int
    hidden_size: int
    vocab_size: int
    sha256: str


class RecordedBy(_Part):
    """Who computed the hidden states.

    Attributes:
        engine: which one.
        version: of it.
        how: ``library``, ``started`` for this, or a ``server`` that was running.
    """

    engine: Recorder
    version: str
    how: Literal["library", "started", "server"]


class RecordedText(_Part):
    """One text: a safetensors file of ``hidden_states`` [tokens, slices, H] and ``token_ids`` [tokens].

    The slices are the taps in order, then the last hidden state where it was recorded.

    Attributes:
        file: its name.
        bytes: its size.
        sha256: of the file.
        tokens: prompt and continuation.
        prompt: tokens of the prompt.
        category: of the prompt, where it names one.
    """

    file: str
    bytes: int
    sha256: str
    tokens: int
    prompt: int
    category: str | None = None


class RecordedPrompts(_Part):
    """What was continued.

    Attributes:
        source: ``bundled``, or the file.
        count: prompts.
        sha256: of their token ids.
    """

    source: str
    count: int
    sha256: str


class StreamsManifest(_Part):
    """A recording.

    Attributes:
        format: of this page.
        tool: version of eagle3-interop.
        target: whose hidden states these are.
        by: who computed them.
        dtype: of the hidden states.
        taps: decoder layers that each slice has passed; 0, the embedding, is looked up where it is not here.
        last: what the last slice is, after the taps; ``absent`` if there is none.
        basis: what the target's distribution is taken from.
        new_tokens: N, tokens of each text that count.
        lookahead: M, tokens after those: the longest draft that can be judged.
        prompts: that were continued.
        texts: in the prompts' order.
    """

    format: Literal[1] = 1
    tool: str
    target: RecordedTarget
    by: RecordedBy
    dtype: Literal["float32", "bfloat16", "float16"]
    taps: tuple[int, ...]
    last: Last
    basis: Basis
    new_tokens: int = Field(ge=2)
    lookahead: int = Field(ge=1)
    prompts: RecordedPrompts
    texts: tuple[RecordedText, ...]


class TeacherForced(_Part):
    """What trainers report: every position of the texts, fed the text itself, step by step.

    Attributes:
        positions: start positions, of each step.
        accuracy: by step, the share at which the draft's token is the target's choice.
        in_draft_vocabulary: the same, of the choice among the draft's own tokens.
        chained: the share at which this and all steps before were right, as in ``accuracy``.
        choice: the target's choice is the largest of its distribution, or the next token of the text.
    """

    positions: tuple[int, ...]
    accuracy: tuple[float, ...]
    in_draft_vocabulary: tuple[float, ...] | None
    chained: tuple[float, ...]
    choice: Literal["distribution", "text"]


class StreamsReport(_Part):
    """Where the hidden states of a report came from.

    Attributes:
        source: the folder.
        by: who recorded them.
        target: what the recording says of its target; None where its form says nothing.
        dtype: of the hidden states.
        taps: recorded.
        last: the last hidden state.
        basis: what the target's choice and distribution rest on.
        final_norm: by what the last state was normed here; None where nothing was.
        texts: recorded texts.
        tokens: in them.
        counted_starts: start positions whose next tokens are the target's own choice, which count as an
            engine would count them.
        starts: all start positions.
        teacher_forced: accuracy at every position.
    """

    source: str
    by: RecordedBy | None
    target: RecordedTarget | None
    dtype: str
    taps: tuple[int, ...]
    last: Last
    basis: Basis
    final_norm: str | None = None
    texts: int
    tokens: int
    counted_starts: int | None = None
    starts: int | None = None
    teacher_forced: TeacherForced | None = None
