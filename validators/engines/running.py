"""A server that runs already: vLLM or SGLang, over HTTP."""

import json
import math
import os
import re
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from http.client import HTTPException
from ipaddress import ip_address
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, ProxyHandler, Request, build_opener

from eagle3_interop.convert.masking import masked
from eagle3_interop.convert.serve.command import Engine
from eagle3_interop.schemas.findings import Unavailable, Usage
from eagle3_interop.validators.accept.shape import Shape
from eagle3_interop.validators.engines.answers import (
    SPOKEN,
    TITLES,
    Ran,
    Served,
    Work,
    from_sglang,
    since,
)

KEY_VARIABLE = "EAGLE3_SERVER_KEY"
"""Environment variable of the server's API key; never printed."""

ASK_S, GENERATE_S, SETTLE_S = 30.0, 1800.0, 10.0
"""Time limits of a question, of one prompt, and of counters that lag behind the last answer."""

SHOWN, HIDDEN = 500, 1000
"""Bytes of a failure's answer that are shown, and that are read beyond them to know a secret by."""

NOTHING = Shape.chain(0)
"""What a server drafts that was started without a draft."""

AT_ONCE = 8
"""Prompts under way at a time."""

DRAFTS = "vllm:spec_decode_num_drafts_total"
ACCEPTED = "vllm:spec_decode_num_accepted_tokens_total"
ACCEPTED_AT = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
FINISHED = "vllm:request_success_total"
WRITTEN = "vllm:generation_tokens_total"
BUSY = ("vllm:num_requests_running", "vllm:num_requests_waiting")

SAMPLE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)", re.MULTILINE)
POSITION = re.compile(r'(?:^|,)position="(\d+)"')


class _NoRedirect(HTTPRedirectHandler):
    """A redirected request would carry the key elsewhere."""

    def redirect_request(self, *_: Any, **__: Any) -> None:  # noqa: ANN401
        """Follow none."""


@dataclass(frozen=True)
class Counters:
    """What ``/metrics`` of vLLM says, summed over its engines.

    Attributes:
        drafts: verification steps.
        accepted: draft tokens.
        per_position: steps that accepted more than j tokens.
        finished: requests.
        written: new tokens.
        busy: requests under way.
    """

    drafts: int
    accepted: int
    per_position: tuple[int, ...]
    finished: int
    written: int
    busy: int


@dataclass(frozen=True)
class RunningServer:
    """A server.

    Attributes:
        url: where it listens.
        engine: what it is.
        version: of it.
        model: under which name it serves the target.
        shape: what it drafts a step.
        dtype: of its target, where it says so.
        baseline: a server of the same target without the draft, where there is one.
    """

    url: str
    engine: Engine
    version: str
    model: str
    shape: Shape
    dtype: str | None
    baseline: "RunningServer | None" = None

    @classmethod
    def found(
        cls, url: str, shape: Shape | None = None, baseline: str | None = None
    ) -> "RunningServer":
        """Ask a server what it is.

        Args:
            url: its base.
            shape: what it should draft a step, if the user says so.
            baseline: base of the server without the draft, if there is one.

        Raises:
            Usage: no URL of a server, or the server drafts otherwise.
            Unavailable: it does not answer, is neither of the two, or does not draft.
        """
        base = checked_url(url)
        info = asked(f"{base}/server_info", missing_ok=True)
        server = cls._sglang(base, info) if info else cls._vllm(base)
        if server.shape == NOTHING:
            raise Unavailable(f"{server.name} at {base} was started without a draft")
        if shape is not None and shape != server.shape:
            raise Usage(
                f"--server drafts {_spoken(server.shape)} a step, not {_spoken(shape)}: leave "
                "--num-draft-tokens and --tree out."
            )
        return server if baseline is None else replace(server, baseline=server._without(baseline))

    def _without(self, url: str) -> "RunningServer":
        """The server without a draft."""
        base = checked_url(url, "--baseline-server")
        info = asked(f"{base}/server_info", missing_ok=True)
        found = type(self)._sglang(base, info) if info else type(self)._vllm(base)
        if found.engine != self.engine:
            raise Usage(
                f"--baseline-server is {found.name}, and --server {self.name}: give the same engine without the draft."
            )
        if found.shape != NOTHING:
            raise Usage(
                f"--baseline-server drafts {_spoken(found.shape)} a step: start it without the draft."
            )
        return found

    @property
    def name(self) -> str:
        """The engine and its version."""
        return f"{TITLES[self.engine]} {self.version}"

    @classmethod
    def _sglang(cls, base: str, info: Mapping[str, Any]) -> "RunningServer":
        version = masked(str(info.get("version")))
        algorithm, steps = info.get("speculative_algorithm"), info.get("speculative_num_steps")
        dtype = info.get("dtype")
        known = dtype if dtype in ("float32", "float16", "bfloat16") else None
        shape = NOTHING
        if algorithm and isinstance(steps, int):
            topk = info.get("speculative_eagle_topk") or 1
            shape = Shape(steps, topk, info.get("speculative_num_draft_tokens") or steps + 1)
        return cls(base, "sglang", version, str(info.get("model_path")), shape, known)

    @classmethod
    def _vllm(cls, base: str) -> "RunningServer":
        version = asked(f"{base}/version", missing_ok=True).get("version")
        if version is None:
            raise Unavailable(f"{base} answers neither as vLLM nor as SGLang does")
        version = masked(str(version))
        models = asked(f"{base}/v1/models").get("data") or []
        if not models:
            raise Unavailable(f"vLLM {version} at {base} serves no model")
        steps = len(_counters(base).per_position)
        return cls(base, "vllm", version, models[0]["id"], Shape.chain(steps), None)

    def generate(self, work: Work) -> Served:
        """Let the server generate.

        Raises:
            Unavailable: it failed, or other traffic moved its counters.
        """
        began = time.monotonic()
        if self.engine == "sglang":
            answers = self._each(work, self._ask_sglang)
            known = {"dtype": self.dtype, "seconds": since(began)}
            served = from_sglang(answers, work, self.version, "server", **known)
            return replace(served, ran=self.timed(work))
        before = _counters(self.url)
        outputs = tuple(tuple(ids) for ids in self._each(work, self._ask_vllm))
        seconds = since(began)
        moved = _moved(self.url, before, outputs)
        return Served(
            engine="vllm",
            version=self.version,
            how="server",
            outputs=outputs,
            drafts=moved.drafts,
            accepted=moved.accepted,
            per_position=moved.per_position,
            seconds=seconds,
            ran=self.timed(work),
        ).checked(work)

    def bare(self, work: Work) -> tuple[Ran, ...] | None:
        """Time the runs on the server without the draft, if there is one.

        Raises:
            Unavailable: it failed.
        """
        return None if self.baseline is None else self.baseline.timed(work)

    def timed(self, work: Work) -> tuple[Ran, ...]:
        """What the runs of the work take, as many requests at a time as they have prompts.

        Raises:
            Unavailable: the server failed, or other traffic moved its counters.
        """
        return tuple(
            self._timed(replace(work, prompts=run.prompts, new_tokens=run.new_tokens, stop_ids=()))
            for run in work.runs
        )

    def _timed(self, work: Work) -> Ran:
        if self.engine == "sglang":
            began = time.perf_counter()
            answers = self._each(work, self._ask_sglang, len(work.prompts))
            seconds = time.perf_counter() - began
            steps = max(int(answer["meta_info"].get(SPOKEN[0]) or 0) for answer in answers)
            outputs = tuple(tuple(answer["output_ids"]) for answer in answers)
            return Ran(seconds, outputs, steps or None)
        before = _counters(self.url)
        began = time.perf_counter()
        outputs = tuple(map(tuple, self._each(work, self._ask_vllm, len(work.prompts))))
        seconds = time.perf_counter() - began
        drafts = _moved(self.url, before, outputs).drafts
        return Ran(seconds, outputs, -(-drafts // len(outputs)) if drafts else None)

    def _each(
        self, work: Work, ask: Callable[[Work, tuple[int, ...]], Any], at_once: int = AT_ONCE
    ) -> list[Any]:
        with ThreadPoolExecutor(at_once) as pool:
            futures = [pool.submit(ask, work, prompt) for prompt in work.prompts]
            try:
                return [future.result() for future in futures]
            finally:
                for future in futures:
                    future.cancel()

    def _ask_sglang(self, work: Work, prompt: tuple[int, ...]) -> Any:  # noqa: ANN401
        body = {
            "input_ids": prompt,
            "sampling_params": {
                "temperature": 0.0,
                "max_new_tokens": work.new_tokens,
                "ignore_eos": not work.stop_ids,
                "stop_token_ids": work.stop_ids,
            },
        }
        answer = asked(f"{self.url}/generate", body, limit=GENERATE_S)
        if not isinstance(answer.get("output_ids"), list) or "meta_info" not in answer:
            raise Unavailable(f"SGLang {self.version} answers without output_ids or meta_info")
        return answer

    def _ask_vllm(self, work: Work, prompt: tuple[int, ...]) -> list[int]:
        body = {
            "model": self.model,
            "prompt": prompt,
            "temperature": 0.0,
            "max_tokens": work.new_tokens,
            "ignore_eos": not work.stop_ids,
            "stop_token_ids": work.stop_ids,
            "return_token_ids": True,
        }
        answer = asked(f"{self.url}/v1/completions", body, limit=GENERATE_S)
        choices = answer.get("choices") or [{}]
        ids = choices[0].get("token_ids")
        if not isinstance(ids, list):
            raise Unavailable(f"vLLM {self.version} does not return token ids; 0.32 does")
        return ids


def checked_url(url: str, option: str = "--server") -> str:
    """The base of a server, without a slash at its end.

    Args:
        url: as the user gave it.
        option: by which.

    Raises:
        Usage: not http(s), without a host, or with a password in it.
    """
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise Usage(f"{option}: {error}") from None
    if parts.username is not None or parts.password is not None:
        raise Usage(f"{option}: no user or password in the URL; set {KEY_VARIABLE} to the API key.")
    if parts.scheme not in ("http", "https") or not host:
        raise Usage(f"{option} {url}: give http://HOST:PORT or https://HOST.")
    if parts.query or parts.fragment:
        raise Usage(f"{option}: give the base of the server, without ? and #.")
    return url.rstrip("/").removesuffix("/v1")


def parse_metrics(text: str) -> Counters:
    """The counters in Prometheus' text format."""
    sums: dict[str, float] = {}
    positions: dict[int, float] = {}
    for name, labels, raw in SAMPLE.findall(text):
        try:
            value = float(raw)
        except ValueError:
            continue
        if not math.isfinite(value):
            continue
        sums[name] = sums.get(name, 0) + value
        if name == ACCEPTED_AT and (found := POSITION.search(labels)):
            positions[int(found[1])] = positions.get(int(found[1]), 0) + value
    return Counters(
        drafts=int(sums.get(DRAFTS, 0)),
        accepted=int(sums.get(ACCEPTED, 0)),
        per_position=tuple(int(positions[j]) for j in sorted(positions)),
        finished=int(sums.get(FINISHED, 0)),
        written=int(sums.get(WRITTEN, 0)),
        busy=int(sum(sums.get(name, 0) for name in BUSY)),
    )


def _counters(base: str) -> Counters:
    return parse_metrics(_read(f"{base}/metrics").decode("utf-8", errors="replace"))


def _moved(base: str, before: Counters, outputs: tuple[tuple[int, ...], ...]) -> Counters:
    """How far the counters moved, if it was us alone who moved them."""
    wanted = len(outputs), sum(map(len, outputs))
    end = time.monotonic() + SETTLE_S
    while True:
        after = _counters(base)
        moved = after.finished - before.finished, after.written - before.written
        if len(after.per_position) != len(before.per_position) or min(moved) < 0:
            raise Unavailable(f"{base} was started anew in between; try again.")
        if before.busy or moved[0] > wanted[0] or moved[1] > wanted[1]:
            break
        if moved == wanted and not after.busy:
            positions = zip(after.per_position, before.per_position, strict=True)
            return Counters(
                drafts=after.drafts - before.drafts,
                accepted=after.accepted - before.accepted,
                per_position=tuple(a - b for a, b in positions),
                finished=moved[0],
                written=moved[1],
                busy=0,
            )
        if time.monotonic() > end:
            break
        time.sleep(0.2)
    raise Unavailable(
        f"other traffic moved the counters of {base}: {moved[0]} requests and {moved[1]} tokens "
        f"finished while {wanted[0]} and {wanted[1]} were ours, {before.busy} requests were under way "
        f"before and {after.busy} after. Keep everybody else away and try again."
    )


def asked(
    url: str, body: object = None, *, limit: float = ASK_S, missing_ok: bool = False
) -> dict[str, Any]:
    """The JSON object that a server answers; empty where it does not know the path and that is fine."""
    try:
        answer = json.loads(_read(url, body, limit))
    except _NotFoundError:
        if missing_ok:
            return {}
        raise
    except ValueError:
        raise Unavailable(f"{url}: no JSON") from None
    if not isinstance(answer, dict):
        raise Unavailable(f"{url}: no JSON object")
    return answer


class _NotFoundError(Unavailable):
    """The server has no such path."""


def _read(url: str, body: object = None, limit: float = ASK_S) -> bytes:
    """A response.

    Raises:
        Unavailable: there was none.
    """
    headers = {"Content-Type": "application/json"}
    if key := os.environ.get(KEY_VARIABLE):
        headers["Authorization"] = f"Bearer {key}"
    data = None if body is None else json.dumps(body).encode()
    request = Request(url, data, headers)  # noqa: S310 - checked_url lets http and https through only
    direct = [ProxyHandler({})] if _is_loopback(urlsplit(url).hostname or "") else []
    opener = build_opener(_NoRedirect(), *direct)
    try:
        with opener.open(request, timeout=limit) as response:
            content: bytes = response.read()
            return content
    except HTTPError as error:
        with error:
            if error.code in (404, 405):
                raise _NotFoundError(f"{url}: not there ({error.code})") from None
            said = error.read(SHOWN + HIDDEN).decode("utf-8", errors="replace")
            said = masked(f"{error.reason} {said}")[
                :SHOWN
            ]  # a secret that is cut is none to look at
            raise Unavailable(f"{url}: {error.code} {said}".rstrip()) from None
    except URLError as error:
        raise Unavailable(f"{url}: {masked(str(error.reason))}") from None
    except TimeoutError:
        raise Unavailable(f"{url}: no answer within {limit:g} s") from None
    except (OSError, HTTPException) as error:
        raise Unavailable(f"{url}: {masked(str(error)) or type(error).__name__}") from None


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _spoken(shape: Shape) -> str:
    if shape.is_chain:
        return f"{shape.steps} tokens"
    return f"a tree {shape.steps},{shape.topk},{shape.tokens}"
