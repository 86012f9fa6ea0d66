"""No secret leaves this machine in a text, whatever it is the secret of, and whoever wrote the text."""

import pytest

from eagle3_interop.convert.masking import masked

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
