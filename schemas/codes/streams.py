"""Recorded hidden states in place of a target that runs."""

from eagle3_interop.schemas.codes.base import Code

CODES: dict[str, Code] = {
    "broken-streams": Code(
        "error",
        "A file of recorded hidden states is damaged, missing or not the one that was recorded.",
        "Copy it again, or record again with eagle3-record.",
    ),
    "wrong-streams": Code(
        "error",
        "The recorded hidden states are of another target, or of other layers than was said.",
        "Give the target that was recorded; of a trainer's files, the layers that it recorded: --stream-taps.",
    ),
    "streams-not-finite": Code(
        "error",
        "Recorded hidden states hold NaN or infinite values, so that nothing can be measured on them.",
        "Record this text again; float16 overflows where bfloat16 does not.",
    ),
    "taps-not-recorded": Code(
        "error",
        "The draft reads layers of the target that were not recorded.",
        "Record them: eagle3-record TARGET --taps LIST --out DIR.",
    ),
    "streams-not-greedy": Code(
        "error",
        "No recorded text follows the target's own greedy choice long enough for a draft to be counted.",
        "Record texts that the target writes itself: eagle3-record.",
    ),
    "not-all-greedy": Code(
        "note",
        "Recorded texts are not all the target's own greedy choice. Start positions whose next tokens are "
        "count as an engine would count them; the teacher-forced accuracy is of all.",
    ),
    "no-loss-mask": Code(
        "note",
        "The recordings do not say which tokens the trainer learned from, so prompts are counted like answers.",
    ),
    "layers-not-tried": Code(
        "note",
        "The diagnosis could not try layers of the target that were not recorded.",
        "Record more of them: eagle3-record TARGET --taps all --out DIR.",
    ),
    "streams-in-part": Code(
        "note", "A diagnosis reads as many of the recorded texts as it can hold."
    ),
}
