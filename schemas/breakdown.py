"""Where a draft is accepted, and where it is not: by kind of prompt, by place in the context, by token."""

from pydantic import BaseModel, ConfigDict


class _Part(BaseModel):
    """Frozen; a key that is not known here is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class CategoryRow(_Part):
    """The counters of all prompts of one category.

    Attributes:
        category: of the prompts; None for those that name none.
        prompts: how many.
        accept_length: 1 + accepted / steps.
        interval: 95 % bootstrap interval of it, over its prompts.
        steps: verification steps.
        accepted: draft tokens that were accepted.
        tokens: new tokens.
    """

    category: str | None
    prompts: int
    accept_length: float
    interval: tuple[float, float]
    steps: int
    accepted: int
    tokens: int


class ContextRow(_Part):
    """The steps that began with so many tokens before them, of prompt and continuation.

    Attributes:
        first: tokens, at least.
        last: tokens, at most.
        steps: verification steps.
        accepted: draft tokens that were accepted.
        accept_length: 1 + accepted / steps.
    """

    first: int
    last: int
    steps: int
    accepted: int
    accept_length: float


class VocabularyRow(_Part):
    """What the draft's vocabulary cannot say.

    Attributes:
        draft_size: tokens that the draft can propose.
        target_size: tokens that the target has.
        tokens: new tokens of the texts.
        inexpressible: of them, those that the draft cannot propose.
        accept_length_bound: the largest accept length that any draft of this vocabulary could have on these texts.
    """

    draft_size: int
    target_size: int
    tokens: int
    inexpressible: int
    accept_length_bound: float


class MissedToken(_Part):
    """A token of the texts at which drafts ended.

    Attributes:
        token: its id.
        text: as the target's tokenizer writes it.
        missed: steps that ended at it.
        tokens: how often it stands in the texts.
        expressible: the draft can propose it.
    """

    token: int
    text: str
    missed: int
    tokens: int
    expressible: bool


class MarkedText(_Part):
    """The beginning of a continuation, with the runs that were accepted.

    Attributes:
        prompt: number of the text, counted from 0.
        text: as the target's tokenizer writes it.
        accepted: by run, its first character and the one after its last.
        whole: nothing was cut off.
    """

    prompt: int
    text: str
    accepted: tuple[tuple[int, int], ...]
    whole: bool


class Breakdown(_Part):
    """The counters of ``acceptance``, taken apart.

    Attributes:
        categories: in the order of the prompts; none where no prompt names one.
        contexts: by tokens before the step, each row twice as long as the one before.
        vocabulary: what the draft cannot propose.
        missed: the tokens at which most drafts ended, the first most often.
        texts: of those with the smallest accept length, the smallest first.
    """

    categories: tuple[CategoryRow, ...]
    contexts: tuple[ContextRow, ...]
    vocabulary: VocabularyRow
    missed: tuple[MissedToken, ...]
    texts: tuple[MarkedText, ...]
