"""What stands in the way of a push."""

from eagle3_interop.schemas.codes.base import Code

CODES: dict[str, Code] = {
    "local-path": Code(
        "error",
        "A path of this machine stands in a config that is to be published.",
        "Convert with --target-name ORG/NAME.",
    ),
    "other-weights": Code(
        "error",
        "The repository already holds weight files of another set.",
        "Push into a repository of its own.",
    ),
    "broken-card": Code("error", "The model card cannot be understood.", "Correct README.md."),
}
