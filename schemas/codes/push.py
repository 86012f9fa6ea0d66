"""What stands in the way of a push."""

from eagle3_interop.schemas.codes.base import Code

CODES: dict[str, Code] = {
    "local-path": Code(
        "error",
        "The config that is to be published names a path of this machine.",
        "Convert with --target-name ORG/NAME.",
    ),
    "other-weights": Code(
        "error",
        "The repository already holds weight files of another set.",
        "Push into a repository of its own.",
    ),
    "broken-card": Code(
        "error", "The model card (README.md) cannot be parsed.", "Correct README.md."
    ),
}
