"""What a folder contains: files, indexes and a config that can be read, or not."""

from eagle3_interop.schemas.codes.base import Code

UNQUANTISED = "Convert the draft that it was made from."

CODES: dict[str, Code] = {
    "other-format": Code(
        "error",
        "The folder is in a format of another framework (GGUF, MLX, Mistral's own, an adapter), which no reader here takes.",
        "Give the folder that it was made from, with config.json and safetensors in transformers' names.",
    ),
    "lfs-pointer": Code(
        "error",
        "The repository was cloned without Git LFS, so that a pointer of some 130 bytes stands for the file.",
        "git lfs pull, in the folder of the clone.",
    ),
    "pointer-left-out": Code(
        "warning",
        "A tokenizer or another file that is only copied is a Git LFS pointer, which no reader could use; it was left out.",
        "git lfs pull, in the folder of the clone, and convert again.",
    ),
    "broken-file": Code(
        "error", "A weight file is damaged or not what its name says.", "Fetch the file again."
    ),
    "broken-config": Code(
        "error",
        "config.json cannot be read as one JSON object.",
        "Fetch config.json again, or correct it.",
    ),
    "broken-index": Code(
        "error",
        "The index names files or tensors that are elsewhere, missing or unsafe.",
        "Fetch the index again.",
    ),
    "no-config": Code("error", "The folder holds no config.json.", "Give a model's folder."),
    "no-weights": Code(
        "error", "The folder holds no weight files.", "Give the folder that holds them."
    ),
    "unreadable-pickle": Code(
        "error",
        "A .bin file holds more than tensors. Code in pickles is never run.",
        "Save the weights as safetensors in the trainer.",
    ),
    "code-in-pickle": Code(
        "error",
        "A .bin file would run code when loaded; it was not.",
        "Save the weights as safetensors in the trainer.",
    ),
    "unknown-dtype": Code(
        "error",
        "A tensor has a dtype that this tool cannot compute with.",
        "Save the weights as bfloat16, float16 or float32.",
    ),
    "ambiguous-weights": Code(
        "error",
        "The folder holds several sets of weights, and frameworks load different ones.",
        "Keep one set of weight files, and with shards the index that names them.",
    ),
    "fails-to-load": Code(
        "warning",
        "The framework's own loader fails on this folder. This tool could still read it.",
        "Convert it: the output loads.",
        effect="does-not-load",
    ),
    "outside-index": Code("warning", "The index leaves something out that lies in the folder."),
    "map-in-side-file": Code(
        "note", "The vocabulary map was taken from a side file of the trainer."
    ),
    "duplicate-tensor": Code(
        "error",
        "The file holds the same tensor under two names. Which one a loader keeps depends on their order.",
        "Keep the one that is meant.",
    ),
    "bad-config": Code(
        "error", "A config key has a value that no framework accepts.", "Correct the value."
    ),
    "cast-overflow": Code(
        "error",
        "Some weights are too large for the new dtype and would become infinite.",
        "Choose --dtype bfloat16 or float32.",
    ),
}
