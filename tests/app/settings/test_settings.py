"""Settings: which source wins, what is refused, and that a user's file is never lost."""

import errno
import os
import stat
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from specchat.app.errors import SettingsError
from specchat.app.settings.named_files import Presets
from specchat.app.settings.settings import REJECTED, Settings
from specchat.app.settings.settings_file import load_settings, save_settings
from specchat.engine import Sampling


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in [name for name in os.environ if name.startswith("SPECCHAT_")]:
        monkeypatch.delenv(name)
    return tmp_path / "config" / "settings.toml"


def write(path: Path, content: str) -> None:
    path.parent.mkdir()
    path.write_text(content)


@pytest.fixture
def written(path: Path) -> Path:
    write(path, "# my own\ngamma = 6  # long\ntemperature = 1\ntheme = 'nord'\n")
    return path


def test_options_win_over_variables_over_the_file_over_defaults(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = written.parent / "missing" / "settings.toml"
    assert load_settings(missing) == (Settings(), None)
    assert not missing.parent.exists()
    monkeypatch.setenv("SPECCHAT_GAMMA", "7")
    monkeypatch.setenv("SPECCHAT_TEMPERATURE", "0.5")
    settings, notice = load_settings(written, {"gamma": 8, "seed": None})
    assert notice is None
    assert (settings.gamma, settings.temperature, settings.theme, settings.top_k) == (8, 0.5, "nord", None)
    assert load_settings(written)[0].gamma == 7
    own = Sampling(0.7, 20, frequency_penalty=0.5, seed=1)
    assert settings.with_model(own).sampling() == replace(own, temperature=0.5)
    assert settings.sampling() == Sampling(0.5)


@pytest.mark.parametrize("content", [b"gamma = \n", b"\x00\x01\xff", b"SQLite format 3\x00", b"x = " + b"[" * 5000])
def test_a_file_that_cannot_be_used_is_reported_each_time_and_stays(path: Path, content: bytes) -> None:
    path.parent.mkdir()
    path.write_bytes(content)
    for _ in range(2):
        settings, notice = load_settings(path, {"top_k": 3})
        assert settings == Settings(top_k=3)
        assert notice
        assert f"{path} is not used until this error in it is fixed: " in notice
        assert "\n" not in notice
    with pytest.raises(SettingsError, match="was not changed: fix this error in the file first"):
        save_settings(path, settings, ["top_k"])
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("gamma = -4", "gamma is -4: it must be from 0"),
        ("gamma = 'four'", "gamma is 'four': it must be a whole number"),
        ("gamma = true", "gamma is True"),
        ("gamma = 4.0", "gamma is 4.0"),
        ("rejected = 1", "rejected is 1: it must be a text"),
        ("temperature = 1" + "0" * 400, "temperature is 1000"),
        ("temperature = 9.5", "temperature is 9.5: it must be from 0 (greedy) to 5"),
        ("drafter = 'oracle'", "drafter 'oracle' is not known"),
        ("theme = ['a']", "theme is ['a']"),
        ("models = 3", "models must be a table, as in [models]"),
        ("models.mine = 3", "models.mine must be a table"),
        ("[models.mine]\nmax_tokens = 3", "max_tokens is not a setting of one model"),
        ("[models.mine]\ngamma = -4", "gamma is -4"),
    ],
)
def test_a_wrong_value_is_named_and_the_others_count(path: Path, line: str, sentence: str) -> None:
    content = f"top_p = 0.5\n{line}\n"
    write(path, content)
    settings, notice = load_settings(path, {"top_k": 3})
    assert settings == Settings(top_k=3, top_p=0.5)
    assert notice
    assert notice.startswith(f"{path} has values that are not used: ")
    assert sentence in notice
    assert "\n" not in notice
    assert path.read_text() == content


@pytest.mark.parametrize("line", ["models = 3", "models.mine = 3"])
def test_a_value_in_the_place_of_a_table_is_not_overwritten(path: Path, line: str) -> None:
    content = f'target = "mine"\n{line}\n'
    write(path, content)
    settings, _notice = load_settings(path)
    with pytest.raises(SettingsError, match="must be a table"):
        save_settings(path, replace(settings, top_k=9), ["theme"], {"top_k": 9})
    assert path.read_text() == content


def test_a_folder_in_its_place_is_left_alone(path: Path) -> None:
    path.mkdir(parents=True)
    settings, notice = load_settings(path)
    assert settings == Settings()
    assert notice
    assert "cannot be read" in notice
    with pytest.raises(SettingsError, match="cannot be written"):
        save_settings(path, replace(settings, gamma=2), ["gamma"])
    assert path.is_dir()
    (path / "file").write_text("")
    with pytest.raises(SettingsError, match=r"settings.toml cannot be written: "):
        save_settings(path / "file" / "settings.toml", Settings(gamma=5), ["gamma"])


def test_settings_of_a_newer_version_are_named_and_kept(written: Path) -> None:
    written.write_text("gamma = 2\nflux = 9\n")
    settings, notice = load_settings(written)
    assert settings.gamma == 2
    assert notice == f"{written} has settings that this version does not know: flux"
    save_settings(written, replace(settings, gamma=3), ["gamma"])
    assert written.read_text() == "gamma = 3\nflux = 9\n"


def test_saving_changes_the_named_values_and_nothing_else(written: Path) -> None:
    settings, _ = load_settings(written, {"top_k": 9})  # from the command line: for this run only
    save_settings(written, replace(settings, gamma=2, theme="dracula", seed=11), ["gamma", "theme", "seed"])
    assert written.read_text() == '# my own\ngamma = 2  # long\ntemperature = 1\ntheme = "dracula"\nseed = 11\n'
    save_settings(written, replace(settings, seed=None), ["seed"])
    assert "seed" not in written.read_text()


def test_what_an_earlier_version_called_otherwise_still_counts(path: Path) -> None:
    write(path, "show_rejected = false\n")
    assert load_settings(path) == (Settings(rejected="hide"), None)


def test_settings_of_the_target_are_between_file_and_variables(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(path, 'top_k = 1\ngamma = 1\ntemperature = 1.0\n[models.mine]\ntop_k = 2\ngamma = 2\ntemperature = "auto"\n')
    monkeypatch.setenv("SPECCHAT_GAMMA", "3")
    assert load_settings(path)[0] == Settings(top_k=1, gamma=3, temperature=1.0)
    mine = Settings(target="mine", top_k=2, gamma=3)
    assert load_settings(path, {"target": "mine"})[0] == mine
    assert load_settings(path, {"target": "mine", "top_k": 4})[0] == replace(mine, top_k=4)
    assert load_settings(path, {"target": "mine"}, profiled=False)[0] == replace(mine, top_k=1, temperature=1.0)


def test_a_linked_file_stays_a_link_and_becomes_private(written: Path, tmp_path: Path) -> None:
    real = tmp_path / "dotfiles.toml"
    written.rename(real)
    real.chmod(0o640)
    written.symlink_to(real)
    save_settings(written, Settings(gamma=5), ["gamma"])
    assert written.is_symlink()
    assert "gamma = 5" in real.read_text()
    assert stat.S_IMODE(real.stat().st_mode) == 0o600
    assert [file.name for file in tmp_path.iterdir() if file.name.startswith(".")] == []


def test_programs_that_change_settings_at_once_keep_each_others_changes(tmp_path: Path) -> None:
    path = tmp_path / "settings.toml"
    code = (
        "import sys; from pathlib import Path\n"
        "from specchat.app.settings.settings import Settings\n"
        "from specchat.app.settings.settings_file import save_settings\n"
        "name = sys.argv[2]\n"
        "for value in range(1, 26): save_settings(Path(sys.argv[1]), Settings(**{name: value}), [name])\n"
    )
    names = ("seed", "top_k", "max_tokens")
    programs = [subprocess.Popen([sys.executable, "-c", code, path, name]) for name in names]
    assert [program.wait(60) for program in programs] == [0, 0, 0]
    settings, notice = load_settings(path)
    assert notice is None
    assert (settings.seed, settings.top_k, settings.max_tokens) == (25, 25, 25)


def test_a_folder_without_permission_has_no_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    presets, allowed = Presets(tmp_path / "presets"), Path.stat

    def refuse(path: Path, **options: bool) -> os.stat_result:
        if tmp_path in path.parents:
            raise PermissionError(errno.EACCES, "Permission denied")
        return allowed(path, **options)

    monkeypatch.setattr(Path, "stat", refuse)
    assert presets.names() == []
    with pytest.raises(SettingsError, match=r"mine.toml cannot be read: Permission denied"):
        presets.apply("mine", Settings())
    with pytest.raises(SettingsError, match=r"mine.toml cannot be written: Permission denied"):
        presets.save("mine", Settings())


valid = st.builds(
    Settings, target=st.text(st.characters(codec="utf-8"), min_size=1).filter(str.strip),
    gamma=st.none() | st.integers(0, 16), temperature=st.floats(0, 5), top_k=st.integers(0, 1 << 40),
    top_p=st.floats(0, 1, exclude_min=True), min_p=st.floats(0, 1, exclude_max=True),
    seed=st.none() | st.integers(-(1 << 62), 1 << 62), max_tokens=st.integers(1, 1 << 20),
    theme=st.text(st.characters(codec="utf-8")), rejected=st.sampled_from(REJECTED),
)  # fmt: skip


@given(valid, valid)
@hypothesis_settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_what_is_saved_comes_back(path: Path, one: Settings, two: Settings) -> None:
    for settings in (one, two):
        save_settings(path, settings, asdict(settings))
        assert load_settings(path) == (settings, None)
