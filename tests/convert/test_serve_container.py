"""`serve --format`: the same command in a container, whatever is written around it."""

import csv
import json
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import drafts
import pytest
import yaml
from typer.testing import CliRunner

import eagle3_interop
from eagle3_interop.convert.cli import app
from eagle3_interop.schemas.engines import releases
from eagle3_interop.schemas.engines.containers import CONTAINERS, image_of

DATA = Path(__file__).parents[1] / "data"
TARGET = DATA / "target"
BASH = shutil.which("bash") or "/bin/bash"
FORMATS = ("docker", "compose", "k8s")
HOSTILE = [
    "plain",
    "with a blank",
    "it's",
    'say "so"',
    "$HOME",
    "$(NAME)",
    "`id`",
    "a,b",
    "a#b",
    "{}",
    "ünï",
]


def served(draft, *words, engine="sglang", target=TARGET):
    """What serve gives as JSON; words behind -- stand last."""
    named = ("--target", str(target)) if target else ()
    options = ("serve", str(draft), "--engine", engine, *named, "--json", *words)
    done = CliRunner().invoke(app, list(options))
    return json.loads(done.stdout)


@pytest.fixture
def needs_plugin(tmp_path):
    eagle3_interop.convert(DATA / "drafts" / "norm_before_residual", tmp_path / "nbr", "sglang")
    return tmp_path / "nbr"


@pytest.fixture
def stock(tmp_path):
    eagle3_interop.convert(DATA / "drafts" / "plain", tmp_path / "plain", "sglang")
    return tmp_path / "plain"


def as_a_shell(text, home="/home/me"):
    """The words that a shell hands to docker."""
    script = f"docker() {{ printf '%s\\0' \"$@\"; }}\n{text}"
    environment = {"PATH": os.environ["PATH"], "HOME": home}
    done = subprocess.run([BASH, "-c", script], capture_output=True, check=True, env=environment)
    return done.stdout.decode().split("\0")[:-1]


def put_in_by_compose(value):
    """What compose makes of a value: two dollars are one, a single one is a variable."""
    assert not re.search(r"(?<!\$)(\$\$)*\$(?!\$)", value), value
    return value.replace("$$", "$")


def put_in_by_k8s(value):
    """Kubernetes puts variables in for $(NAME), unless two dollars stand there; no other dollar means anything."""
    assert not re.search(r"(?<!\$)\$\([A-Za-z_]", value), value
    return value.replace("$$(", "$(")


def run_in(form, text):
    """What runs in the container: entrypoint and arguments, and its environment."""
    if form == "docker":
        words = as_a_shell(text)
        at = words.index("--entrypoint")
        given = [words[i + 1] for i, word in enumerate(words) if word == "-e"]
        variables = dict(one.partition("=")[::2] for one in given)
        return [words[at + 1], *words[at + 3 :]], variables, words[at + 2]
    if form == "compose":
        (service,) = yaml.safe_load(text)["services"].values()
        words = [put_in_by_compose(word) for word in (*service["entrypoint"], *service["command"])]
        return words, service.get("environment", {}), service["image"]
    deployment, _ = yaml.safe_load_all(text)
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    words = [put_in_by_k8s(word) for word in (*container["command"], *container["args"])]
    variables = {one["name"]: one.get("value") for one in container.get("env", [])}
    return words, variables, container["image"]


def mounted(form, text):
    """The folders of this machine, each with its place in the container."""
    if form == "docker":
        words = as_a_shell(text)
        rows = [words[i + 1] for i, word in enumerate(words) if word == "--mount"]
        fields = [dict(x.partition("=")[::2] for x in next(csv.reader([row]))) for row in rows]
        return {row["source"]: row["target"] for row in fields}
    if form == "compose":
        (service,) = yaml.safe_load(text)["services"].values()
        binds = [row for row in service.get("volumes", []) if row.get("read_only")]
        return {put_in_by_compose(x["source"]): put_in_by_compose(x["target"]) for x in binds}
    deployment, _ = yaml.safe_load_all(text)
    spec = deployment["spec"]["template"]["spec"]
    at = {row["name"]: row["mountPath"] for row in spec["containers"][0]["volumeMounts"]}
    return {
        row["hostPath"]["path"]: at[row["name"]] for row in spec["volumes"] if "hostPath" in row
    }


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_the_container_runs_the_command_that_a_shell_would(stock, form, engine, tmp_path):
    eagle3_interop.convert(DATA / "drafts" / "plain", tmp_path / "flat", "vllm")
    draft = tmp_path / "flat" if engine == "vllm" else stock
    line = served(draft, engine=engine)["command"]
    words, _, image = run_in(form, served(draft, "--format", form, engine=engine)["artefact"])
    outside = list(CONTAINERS[engine].outside or ())
    assert words == [*shlex.split(line), *outside]
    assert image == image_of(engine)


@pytest.mark.parametrize("form", FORMATS)
def test_the_plugin_is_installed_before_the_server_starts(needs_plugin, form):
    words, variables, _ = run_in(form, served(needs_plugin, "--format", form)["artefact"])
    assert words[:2] == ["sh", "-c"]
    assert re.fullmatch(r'pip install eagle3-interop==[\d.]+ && exec "\$0" "\$@"', words[2]), words[
        2
    ]
    assert words[3:6] == ["python", "-m", "sglang.launch_server"]
    assert variables["SGLANG_EXTERNAL_MODEL_PACKAGE"] == "eagle3_interop.sglang_plugin"


def test_the_shell_of_the_container_hands_the_words_on(needs_plugin):
    """`exec "$0" "$@"` is run by a real shell, with the installation and the server stood in for."""
    words, _, _ = run_in("docker", served(needs_plugin, "--format", "docker")["artefact"])
    script = words[2].replace("pip install", "true").replace("exec ", "printf '%s\\n' ")
    done = subprocess.run(
        [BASH, "-c", script, *words[3:]], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == words[3:]


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("name", HOSTILE)
def test_a_folder_of_any_name_is_mounted_at_its_own_place(stock, form, name, tmp_path):
    draft = tmp_path / name
    stock.rename(draft)
    text = served(draft, "--format", form)["artefact"]
    place = str(draft.resolve())
    assert mounted(form, text) == {str(TARGET.resolve()): str(TARGET.resolve()), place: place}
    words, _, _ = run_in(form, text)
    assert words[words.index("--speculative-draft-model-path") + 1] == place


@pytest.mark.parametrize("form", FORMATS)
def test_where_links_lead_is_mounted_too(stock, form, tmp_path):
    """A folder of the Hub's cache holds links into the blobs beside it."""
    blobs = tmp_path / "blobs"
    blobs.mkdir()
    weights = stock / "model.safetensors"
    shutil.move(weights, blobs / "abc")
    weights.symlink_to("../blobs/abc")
    found = mounted(form, served(stock, "--format", form)["artefact"])
    assert found[str(blobs.resolve())] == str(blobs.resolve())


@pytest.mark.parametrize("form", FORMATS)
def test_a_relative_path_is_no_relative_path_in_a_container(stock, form, monkeypatch):
    monkeypatch.chdir(stock.parent)
    words, _, _ = run_in(form, served(stock.name, "--format", form)["artefact"])
    assert words[words.index("--speculative-draft-model-path") + 1] == str(stock.resolve())


@pytest.mark.parametrize("form", FORMATS)
def test_a_model_of_the_hub_is_kept_in_the_cache_and_asked_for_with_the_token(form, tmp_path):
    """The draft names it. The token is named, never written."""
    source = drafts.speculators(tmp_path / "draft")
    text = served(source, "--format", form, engine="vllm", target=None)["artefact"]
    assert "/root/.cache/huggingface" in text
    _, variables, _ = run_in(form, text)
    assert variables["HF_TOKEN"] in (None, "")


@pytest.mark.parametrize("form", FORMATS)
def test_local_models_need_neither_cache_nor_token(stock, form):
    text = served(stock, "--format", form)["artefact"]
    assert "HF_TOKEN" not in text
    assert "huggingface" not in text


def gpus(form, text):
    if form == "compose":
        (service,) = yaml.safe_load(text)["services"].values()
        return service["deploy"]["resources"]["reservations"]["devices"][0]["count"]
    deployment, _ = yaml.safe_load_all(text)
    container = deployment["spec"]["template"]["spec"]["containers"][0]
    return container["resources"]["limits"]["nvidia.com/gpu"]


@pytest.mark.parametrize("form", ["compose", "k8s"])
@pytest.mark.parametrize(
    ("flags", "count"),
    [
        ((), 1),
        (("--tp", "8"), 8),
        (("--tp-size=4", "--pp-size", "2"), 8),
        (("--tp", "2", "--dp", "2"), 4),
        (("--tp", "4", "--dp", "4", "--enable-dp-attention"), 4),
    ],
)
def test_the_gpus_are_those_that_the_flags_need(stock, form, flags, count):
    assert gpus(form, served(stock, "--format", form, "--", *flags)["artefact"]) == count


@pytest.mark.parametrize("form", FORMATS)
def test_the_port_of_the_server_is_the_one_that_is_published(stock, form):
    text = served(stock, "--format", form, "--", "--port", "31000")["artefact"]
    published = {"docker": "-p 31000:31000", "compose": "31000:31000", "k8s": "port: 31000"}
    assert published[form] in text
    assert "30000" not in text


def test_flags_of_the_engine_are_passed_on_in_their_order(stock):
    command = served(stock, "--", "--tp", "8", "--mem-fraction-static", "0.8")["command"]
    assert command.endswith(" --tp 8 --mem-fraction-static 0.8")


def test_a_host_of_the_users_own_stays(stock):
    flags = ("--format", "docker", "--", "--host", "127.0.0.1")
    words, _, _ = run_in("docker", served(stock, *flags)["artefact"])
    assert [words[i + 1] for i, word in enumerate(words) if word == "--host"] == ["127.0.0.1"]


@pytest.mark.parametrize(
    "flag", ["--speculative-num-steps=5", "--speculative_eagle_topk", "--speculative-algo"]
)
def test_a_flag_that_the_command_has_is_no_flag_to_pass_on(stock, flag):
    found = served(stock, "--", flag, "5")
    assert found["exit_code"] == 2
    assert "is in the command already" in found["message"]


def test_a_flag_that_the_engine_has_not_is_found(stock):
    found = served(stock, "--", "--tensor-paralel-size", "8")
    assert found["status"] == "wrong"
    assert [item["code"] for item in found["findings"]] == ["serve-unknown-flag"]


@pytest.mark.parametrize("word", ["stray", "-", "-5"])
def test_a_word_that_is_no_flag_is_wrong_usage(stock, word):
    assert served(stock, "--", word)["exit_code"] == 2


@pytest.mark.parametrize("engine", CONTAINERS)
def test_the_flag_that_is_shown_as_an_example_is_one_of_the_engine(stock, engine):
    """On one's own folder: each engine runs what was converted for it."""
    draft = DATA / "drafts" / "plain" if engine == "vllm" else stock
    told = served(draft, "--", "stray", engine=engine)["message"]
    example = told.split(" -- ")[-1].rstrip(".").split()
    assert served(draft, "--", *example, engine=engine)["status"] == "ok"


@pytest.mark.parametrize("form", ["shell", *FORMATS])
@pytest.mark.parametrize("port", ["abc", "0", "99999999"])
def test_a_port_that_is_none_is_wrong_usage_in_every_form(stock, form, port):
    found = served(stock, "--format", form, "--", "--port", port)
    assert found["exit_code"] == 2
    assert found["message"].startswith("--port")


@pytest.mark.parametrize("engine", CONTAINERS)
def test_the_command_in_docker_passes_its_own_check(stock, engine):
    draft = DATA / "drafts" / "plain" if engine == "vllm" else stock
    line = served(draft, "--format", "docker", engine=engine)["artefact"]
    judged = served(draft, "--check", line, engine=engine)
    assert [item["code"] for item in judged["findings"] if "other" in item["code"]] == []
    assert judged["status"] == "ok"


@pytest.mark.parametrize("form", FORMATS)
def test_a_container_needs_a_target_that_it_can_find(form, tmp_path, monkeypatch):
    """The trained drafts name the folder that they were trained on, by a path that leads nowhere from here."""
    monkeypatch.chdir(tmp_path)
    found = served(DATA / "drafts" / "plain", "--format", form, engine="vllm", target=None)
    assert found["exit_code"] == 2
    assert "tests/data/target" in found["message"]
    assert found["message"].endswith("give --target.")
    source = drafts.vllm(tmp_path / "draft")
    nameless = served(source, "--format", form, engine="vllm", target=None)
    assert nameless["message"].endswith("does not name its target: give --target.")


@pytest.mark.parametrize("words", [("--format", "docker"), ("--", "--tp", "8")])
def test_a_command_that_is_checked_stands_for_itself(stock, words):
    assert served(stock, "--check", "--tp 2", *words)["exit_code"] == 2


@pytest.mark.parametrize(
    ("engine", "version", "tag"),
    [
        ("vllm", "0.32.0", "vllm/vllm-openai:v0.32.0"),
        ("vllm", "0.28", "vllm/vllm-openai:v0.28.0"),
        ("sglang", "0.5.16", "lmsysorg/sglang:v0.5.16"),
    ],
)
def test_the_image_is_that_of_the_release(engine, version, tag):
    assert image_of(engine, version) == tag


def test_the_image_of_a_named_release_is_taken(tmp_path):
    eagle3_interop.convert(DATA / "drafts" / "plain", tmp_path / "flat", "vllm")
    text = served(tmp_path / "flat", "--format", "k8s", "--for", "vllm==0.28", engine="vllm")
    assert run_in("k8s", text["artefact"])[2] == "vllm/vllm-openai:v0.28.0"


@pytest.mark.parametrize("engine", CONTAINERS)
def test_without_one_it_is_the_newest_that_is_known(engine):
    wanted = f"{CONTAINERS[engine].image}:v{releases.newest(engine).until}"
    assert image_of(engine) in (wanted, f"{wanted}.0")


def test_labels_find_the_pods(stock):
    deployment, service = yaml.safe_load_all(served(stock, "--format", "k8s")["artefact"])
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert deployment["spec"]["selector"]["matchLabels"] == service["spec"]["selector"] == labels
