"""The target's taps and texts on tiny random models of many families."""

import json
import subprocess
import sys
import textwrap

import pytest
import torch
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    CohereConfig,
    DeepseekV2Config,
    DeepseekV3Config,
    Gemma2Config,
    Gemma3Config,
    Gemma3TextConfig,
    Glm4MoeLiteConfig,
    GptOssConfig,
    GraniteConfig,
    Kimi_K25Config,
    LlamaConfig,
    MistralConfig,
    Phi3Config,
    Qwen2_5_VLConfig,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
    SiglipVisionConfig,
)

from eagle3_interop.schemas.findings import Refused, Unavailable, Usage
from eagle3_interop.validators.target.running import Target, pack, resolve_device
from eagle3_interop.validators.target.writing import write_texts

DEPTH = 3
PLAIN = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": DEPTH, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 97, "max_position_embeddings": 128, "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
HEADS = PLAIN | {"head_dim": 8}
LATENT = PLAIN | {
    "num_key_value_heads": 4, "q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8, "v_head_dim": 8, "moe_intermediate_size": 16, "n_routed_experts": 4,
    "n_shared_experts": 1, "num_experts_per_tok": 2, "first_k_dense_replace": 1, "n_group": 1,
    "topk_group": 1,
}  # fmt: skip
EXPERTS = {"num_experts_per_tok": 2}
GEMMA = {"sliding_window": 8, "query_pre_attn_scalar": 8}


def gemma3_vision():
    vision = SiglipVisionConfig(
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=DEPTH,
        num_attention_heads=2,
        image_size=28,
        patch_size=14,
    )
    text = Gemma3TextConfig(**HEADS, **GEMMA)
    return Gemma3Config(text_config=text, vision_config=vision, mm_tokens_per_image=4)


def qwen_vision():
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]}
    vision = {
        "depth": DEPTH,
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_heads": 2,
        "out_hidden_size": 32,
    }
    return Qwen2_5_VLConfig(text_config=HEADS | {"rope_parameters": rope}, vision_config=vision)


def kimi_vision():
    vision = {
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": DEPTH,
        "num_attention_heads": 2,
    }
    text = LATENT | {"model_type": "kimi_k2", "tie_word_embeddings": False}
    return Kimi_K25Config(text_config=text, vision_config=vision, tie_word_embeddings=False)


FAMILIES = {
    "llama": lambda: LlamaConfig(**HEADS),
    "qwen2": lambda: Qwen2Config(**PLAIN),
    "qwen3": lambda: Qwen3Config(**HEADS),
    "qwen3-moe": lambda: Qwen3MoeConfig(
        **HEADS, **EXPERTS, num_experts=4, moe_intermediate_size=16
    ),
    "gemma2": lambda: Gemma2Config(**HEADS, **GEMMA),
    "gemma3": lambda: Gemma3TextConfig(**HEADS, **GEMMA),
    "gpt-oss": lambda: GptOssConfig(**HEADS, **EXPERTS, num_local_experts=4, sliding_window=8),
    "deepseek-v2": lambda: DeepseekV2Config(**LATENT, topk_method="greedy"),
    "deepseek-v3": lambda: DeepseekV3Config(**LATENT),
    "glm4-moe-lite": lambda: Glm4MoeLiteConfig(**LATENT),
    "kimi-k2.5": kimi_vision,
    "mistral": lambda: MistralConfig(**HEADS, sliding_window=8),
    "phi3": lambda: Phi3Config(**PLAIN),
    "cohere": lambda: CohereConfig(**PLAIN),
    "granite": lambda: GraniteConfig(**PLAIN, logits_scaling=4.0, embedding_multiplier=3.0),
    "gemma3-vision": gemma3_vision,
    "qwen2.5-vl": qwen_vision,
}


def written(target, prompts, new_tokens, **options):
    """What the target adds to each prompt."""
    made = write_texts(target, prompts, new_tokens, 0, **options)
    return [list(text.completion) for text in made.texts]


def make_model(config, seed=0):
    torch.manual_seed(seed)
    causal = type(config) in MODEL_FOR_CAUSAL_LM_MAPPING
    auto = AutoModelForCausalLM if causal else AutoModelForImageTextToText
    model = auto.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, parameter.shape[-1] ** -0.5)
    return model


@pytest.fixture(scope="module", params=FAMILIES)
def family(request):
    return request.param, Target(make_model(FAMILIES[request.param]()))


def test_taps_are_the_residual_stream(family):
    """Against transformers' own hidden states, whose last entry is after the final norm."""
    _, target = family
    tokens = torch.randint(3, 97, (2, 17), generator=torch.Generator().manual_seed(1))
    found = target.features(tokens, range(DEPTH + 1))
    with torch.no_grad():
        expected = target.model(input_ids=tokens, output_hidden_states=True)
    for tap in range(DEPTH):
        assert torch.equal(found.taps[tap], expected.hidden_states[tap]), tap
    assert not torch.allclose(found.taps[DEPTH], expected.hidden_states[DEPTH], atol=1e-2)
    assert torch.equal(target.backbone.norm(found.taps[DEPTH]), found.final)
    assert torch.equal(found.final, expected.hidden_states[DEPTH])
    assert torch.allclose(target.logits(found.final), expected.logits, atol=1e-5)


def test_a_pass_can_end_at_the_last_tap(family):
    _, target = family
    tokens = torch.tensor([[5, 6, 7, 8, 9]])
    whole = target.features(tokens, range(DEPTH + 1))
    for last in range(DEPTH + 1):
        part = target.features(tokens, [0, last], final=False)
        assert part.final.shape == (1, 5, 0)
        assert torch.equal(part.taps[last], whole.taps[last])
    assert torch.equal(target.features(tokens, ()).final, whole.final)


def test_tap_0_is_scaled_where_the_model_scales(family):
    name, target = family
    tokens = torch.tensor([[5, 9, 11]])
    scale = {"gemma2": 32**0.5, "gemma3": 32**0.5, "gemma3-vision": 32**0.5, "granite": 3.0}
    found = target.features(tokens, [0]).taps[0]
    expected = target.tables().embeddings[tokens] * scale.get(name, 1.0)
    assert torch.allclose(found, expected, atol=1e-5)


def test_generation_is_the_models_own_greedy_choice(family):
    """Batched with padding and a cache; then judged by one pass without either, text by text."""
    _, target = family
    prompts = [[5, 6, 7], [8, 9, 10, 11, 12, 13, 14], [15, 16, 17]]
    done = []
    for prompt, text in zip(
        prompts, written(target, prompts, 20, progress=done.append), strict=True
    ):
        final = target.features(torch.tensor([prompt + text]), []).final[0]
        assert target.greedy(final, chunk=7)[len(prompt) - 1 : -1].tolist() == text
    assert sum(done) == 60


def test_padding_on_the_right_changes_nothing(family):
    _, target = family
    tokens = torch.tensor([[5, 6, 7, 8, 9, 0, 0, 0], [5, 6, 7, 8, 9, 90, 91, 92]])
    found = target.features(tokens, [1, DEPTH]).taps
    for stream in found.values():
        assert torch.allclose(stream[0, :5], stream[1, :5], atol=1e-5)


def test_sampling_is_seeded_and_follows_the_probabilities():
    target = Target(make_model(LlamaConfig(**HEADS)))
    prompts = [[5, 6, 7]] * 400

    def sample(seed):
        return written(target, prompts, 1, temperature=0.7, seed=seed)

    assert sample(3) == sample(3)
    assert sample(3) != sample(4)
    logits = target.logits(target.features(torch.tensor([[5, 6, 7]]), []).final[0, -1])
    wanted = (logits / 0.7).softmax(-1)
    counts = torch.zeros(97).index_add_(0, torch.tensor(sample(3))[:, 0], torch.ones(400))
    assert float((counts / 400 - wanted).abs().sum()) < 0.5


def test_rows_are_packed_by_a_token_budget():
    assert list(pack([3, 3, 4, 9, 30, 2], 12)) == [[0, 1, 2], [3], [4], [5]]
    assert list(pack([], 12)) == []


def test_a_batch_never_exceeds_the_budget():
    target = Target(make_model(LlamaConfig(**HEADS)))
    prompts = [[5] * n for n in (3, 9, 2, 14, 5)]
    whole = written(target, prompts, 6)
    assert written(target, prompts, 6, token_budget=20) == whole
    assert written(target, prompts, 0) == [[]] * 5


def test_a_missing_device_is_wrong_usage():
    assert resolve_device("cpu") == torch.device("cpu")
    assert resolve_device("auto").type in ("cpu", "cuda")
    for name in ("cuda:99", "tpu", "cpu:0", "cuda:x"):
        with pytest.raises(Usage, match=name):
            resolve_device(name)


def test_loading(tmp_path):
    model = make_model(LlamaConfig(**HEADS))
    model.save_pretrained(tmp_path / "good")
    target = Target.load(tmp_path / "good", dtype=torch.bfloat16)
    assert (target.depth, target.hidden_size, target.vocabulary_size) == (DEPTH, 32, 97)
    assert target.tables().head.dtype == torch.bfloat16
    with pytest.raises(Unavailable):
        Target.load(tmp_path / "missing")


def test_kimi_k2_is_loaded_by_the_class_of_deepseek_v3(tmp_path):
    """Its folder brings code of its own, which is not asked for: nothing of it runs."""
    model = make_model(DeepseekV3Config(**LATENT))
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    auto_map = {
        "AutoConfig": "configuration_deepseek.DeepseekV3Config",
        "AutoModelForCausalLM": "modeling_deepseek.DeepseekV3ForCausalLM",
    }
    config |= {"model_type": "kimi_k2", "auto_map": auto_map}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "configuration_deepseek.py").write_text("raise SystemExit('remote code ran')")
    tokens = torch.arange(3, 20)[None]
    found, wanted = (x.features(tokens, [0, 2]) for x in (Target.load(tmp_path), Target(model)))
    assert torch.equal(found.taps[2], wanted.taps[2])
    assert torch.equal(found.final, wanted.final)


def test_what_is_no_target_is_refused(tmp_path):
    model = make_model(LlamaConfig(**HEADS))
    model.save_pretrained(tmp_path)
    config = (tmp_path / "config.json").read_text()
    (tmp_path / "config.json").write_text(
        config.replace("LlamaForCausalLM", "Eagle3LlamaForCausalLM")
    )
    with pytest.raises(Refused, match="is a draft"):
        Target.load(tmp_path)
    (tmp_path / "config.json").write_text(config.replace('"llama"', '"no-such-model"'))
    with pytest.raises(Refused, match="no-such-model"):
        Target.load(tmp_path)
    more = config.replace('"num_hidden_layers": 3', '"num_hidden_layers": 4')
    (tmp_path / "config.json").write_text(more)
    with pytest.raises(Refused, match="missing"):
        Target.load(tmp_path)


def test_taps_beyond_the_target_are_refused():
    target = Target(make_model(LlamaConfig(**HEADS)))
    with pytest.raises(Refused, match="tap 4"):
        target.features(torch.tensor([[1, 2]]), [4])


STREAMED = textwrap.dedent("""
    import sys, threading, time
    import torch
    from eagle3_interop.validators.target.running import Target

    torch.set_num_threads(1)
    def anonymous():
        with open("/proc/self/status") as status:
            line = next(line for line in status if line.startswith("RssAnon"))
        return int(line.split()[1]) * 1024

    peak, stop = 0, threading.Event()
    def watch():
        global peak
        while not stop.wait(0.002):
            peak = max(peak, anonymous())

    before = anonymous()
    watcher = threading.Thread(target=watch)
    watcher.start()
    target = Target.load(sys.argv[1], memory=int(sys.argv[2]))
    features = target.features(torch.arange(64)[None], [0, 4, 8])
    best = target.greedy(features.final[0, -4:])
    stop.set()
    watcher.join()
    streamed = any(p.is_meta for p in target.model.parameters())
    print(peak - before, streamed, best.tolist())
""")


def test_a_target_bigger_than_memory_is_streamed(tmp_path):
    """The weights' bytes are mapped from the file, a layer at a time: they never add up in memory."""
    sizes = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 8}
    model = make_model(LlamaConfig(**HEADS | sizes | {"num_attention_heads": 8, "head_dim": 128}))
    size = sum(p.numel() for p in model.parameters()) * 4
    model.save_pretrained(tmp_path)
    best = Target(model).features(torch.arange(64)[None], []).final[0, -4:]
    best = Target(model).greedy(best).tolist()
    done = subprocess.run(
        [sys.executable, "-c", STREAMED, str(tmp_path), str(size // 4)],
        capture_output=True,
        text=True,
        check=True,
    )
    peak, streamed, found = done.stdout.split(maxsplit=2)
    assert streamed == "True"
    assert found.strip() == str(best)
    assert int(peak) < size / 2, (peak, size)


def test_a_target_without_its_layers_keeps_head_tables_and_depth():
    """What was captured of the layers is all that a search still asks for."""
    target = Target(make_model(LlamaConfig(**HEADS)))
    hidden = torch.randn(2, target.hidden_size)
    with torch.no_grad():
        before = target.logits(hidden)
        target.release_layers()
        assert torch.equal(target.logits(hidden), before)
    assert all(x.device.type == "meta" for layer in target.layers for x in layer.parameters())
    assert target.depth == DEPTH
    assert target.tables().embeddings.device.type == "cpu"
