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


LONG = "s3cret" * 6


@pytest.mark.parametrize(
    "text",
    [
        f"Authorization: Bearer {LONG}",
        "{'authorization': 'bearer s3cret-s3cret'}",
        "Proxy-Authorization: Basic czNjcmV0s3cret==",
        "GET https://me:s3cret@host/path",
        "https://s3cret@host/path",
        "https://host/path?a=1&token=s3cret&b=2",
        "api_key=s3cret",
        "api_key='s3cret'",
        "non-default args: {'api_key': ['s3cret', 's3cret2'], 'port': 1}",
        "Namespace(api_key=('s3cret', 's3cret2'), port=1)",
        '"HF_TOKEN": "s3cret"',
        "AWS_SECRET_ACCESS_KEY=s3cret",
        "password: s3cret",
        "--api-key s3cret",
        "--api-key=s3cret",
        "['--api-key', 's3cret']",
        "--hf-token s3cret --port 1",
        f"hf_{LONG}",
        f"ghp_{LONG}",
        f"github_pat_{LONG}",
        f"sk-proj-{LONG}",
        f"glpat-{LONG}",
        f"nvapi-{LONG}",
        f"xoxb-{LONG}",
        f"AIza{LONG}",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJzM2NyZXQifQ.s3cret",
    ],
)
def test_what_looks_like_a_secret_is_masked(text):
    assert "s3cret" not in masked(f"before {text} after")
    assert masked(text) != text
    assert masked(f"before {text} after").startswith("before ")


@pytest.mark.parametrize(
    "text",
    [
        "skip_tokenizer_init=True, max_total_tokens=8192",
        "num_speculative_tokens: 4, stop_token_ids=[1, 2]",
        "hf_overrides={}, hf_config_path=None, hf_text_config",
        "--max-total-tokens 8192 --num-speculative-tokens 3",
        "prompt tokens: [1, 2, 3]",
        "RuntimeError: CUDA error: no kernel image is available",
    ],
)
def test_what_engines_say_of_tokens_stays_as_it_is(text):
    assert masked(text) == text
