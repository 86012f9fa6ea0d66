"""What a diagnosis found."""

from eagle3_interop.schemas.codes.base import Code

CODES: dict[str, Code] = {
    "wiring-differs": Code(
        "warning",
        "The weights fit another wiring than the configured one, so many drafted tokens are lost.",
        "--write OUTPUT writes a checkpoint that says the better one.",
    ),
    "wiring-none": Code(
        "warning",
        "With no choice of layers and flags do these weights draft for this target.",
        "Give the target that the draft was trained for; look for wrong or untrained weights.",
    ),
    "wiring-equivalent": Code(
        "note", "Wirings that these texts cannot tell apart: equal in effect, or nearly."
    ),
    "wiring-not-configured": Code(
        "warning",
        "The config does not describe a network that can be run. The search began from a guess.",
    ),
    "few-texts": Code(
        "warning",
        "So few texts were scored that the next ones may prefer another wiring: nothing is written on their word.",
        "Give more prompts, or longer recordings, before a verdict is believed.",
    ),
    "wiring-doubted": Code(
        "warning",
        "The texts leave a doubt in the verdict: they are few, a gain is small, or two measures of it disagree.",
    ),
    "nothing-written": Code(
        "warning",
        "There is no better wiring to write.",
        "Use the folder as it is, or find out whose target it was trained for.",
    ),
    "wiring-not-supported": Code(
        "warning",
        "The texts do not support the wiring that was to be written.",
        "Give more prompts, of the kind that the draft was trained on.",
    ),
    "wiring-not-written": Code(
        "warning", "No framework's config can describe this wiring, so no checkpoint was written."
    ),
    "search-cut-short": Code(
        "warning",
        "The budget ended before the search did; a better wiring may be left.",
        "Give a larger --budget.",
    ),
    "streams-on-disk": Code(
        "note", "The target's streams did not fit in memory and lay in a temporary folder."
    ),
}
