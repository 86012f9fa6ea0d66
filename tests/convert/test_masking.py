"""No path of this machine and no secret in what leaves it."""

import pytest

from eagle3_interop.convert.masking import masked, public_words, shortened

KEY = "a1B2c3D4e5F6g7H8i9J0k1L2"


@pytest.mark.parametrize(
    ("text", "public"),
    [
        (f"hf_{KEY}", "***"),
        (f"token hf_{KEY} refused", "token *** refused"),
        (f"ghp_{KEY}", "***"),
        (f"sk-{KEY}", "***"),
        (f"nvapi-{KEY}", "***"),
        ("AKIAABCDEFGHIJKLMNOP", "***"),
        (f"Authorization: Bearer {KEY}", "Authorization: Bearer ***"),
        (f"Authorization: Basic {KEY}=", "Authorization: Basic ***"),
        (f'{{"authorization": "Basic {KEY}="}}', '{"authorization": "Basic ***"}'),
        (f"github_pat_{KEY}_{KEY}", "***"),
        ("https://bob:secret@host/v1", "https://***@host/v1"),
        ("http://host?token=abc&x=1", "http://host?token=***&x=1"),
        ('{"api_key": "abc"}', '{"api_key": "***"}'),
        ("password=abc", "password=***"),
    ],
)
def test_a_secret_is_masked(text, public):
    assert masked(text) == public


@pytest.mark.parametrize(
    "text",
    [
        "--num-draft-tokens 4",
        '{"num_speculative_tokens": 3}',
        "max_tokens=5",
        "sha256 " + "0f" * 32,
        "org/draft@main",
        "the basic attention of the target",
        "hf_quantization_config_of_the_model",
        "model.layers.0.self_attn.q_proj.weight",
        "tokenizer.json",
    ],
)
def test_what_is_no_secret_stays(text):
    assert masked(text) == shortened(text) == text


@pytest.mark.parametrize(
    ("words", "public"),
    [
        (["/home/bob/draft", "--target", "org/target"], ["draft", "--target", "org/target"]),
        (["--json=/tmp/x/report.json"], ["--json=report.json"]),
        (["--target", "./data/target"], ["--target", "target"]),
        (["--engine-python", "~/envs/vllm/bin/python"], ["--engine-python", "python"]),
        (["--engine-arg", f"hf-token={KEY}"], ["--engine-arg", "hf-token=***"]),
        (["--engine-arg", "download-dir=/mnt/big/hub"], ["--engine-arg", "download-dir=hub"]),
        (["--token", "abc"], ["--token", "***"]),
        (["--server", "http://bob:pw@host:8000"], ["--server", "http://***@host:8000"]),
        (["--num-draft-tokens", "4"], ["--num-draft-tokens", "4"]),
        ([r"C:\Users\bob\draft"], ["draft"]),
    ],
)
def test_a_command_line_is_recorded_without_paths_and_secrets(words, public):
    assert public_words(words) == public
