"""The plugin stops an SGLang that it was not run with."""

import pytest

from eagle3_interop.sglang_plugin import versions


@pytest.mark.parametrize("installed", [*versions.TESTED, "0.5.23+cu129"])
def test_a_tested_version_passes(installed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "version", lambda _: installed)
    versions.refuse_untested_sglang()


@pytest.mark.parametrize("installed", ["0.5.20", "0.5.23.post1", "0.5.24", "0.6.0rc1"])
def test_any_other_is_refused_by_name(installed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "version", lambda _: installed)
    monkeypatch.delenv(versions.OVERRIDE, raising=False)
    with pytest.raises(versions.UntestedSGLangError) as caught:
        versions.refuse_untested_sglang()
    assert installed in str(caught.value)
    assert f"{versions.OVERRIDE}=1" in str(caught.value)
    assert "0.5.23" in str(caught.value)


def test_the_user_may_insist(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "version", lambda _: "0.5.24")
    monkeypatch.setenv(versions.OVERRIDE, "1")
    versions.refuse_untested_sglang()
