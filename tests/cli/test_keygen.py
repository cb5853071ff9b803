"""`starspec keygen` makes keys once."""

from pathlib import Path


def test_keys_are_made_and_named(tmp_path: Path, starspec) -> None:
    outcome = starspec("keygen", str(tmp_path / "keys"))
    assert outcome.code == 0
    made = sorted(path.name for path in (tmp_path / "keys").iterdir())
    assert made == sorted(Path(line).name for line in outcome.out.splitlines() if line.startswith("/"))
    assert len(made) == 8


def test_keys_are_never_overwritten(tmp_path: Path, starspec) -> None:
    starspec("keygen", str(tmp_path))
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    outcome = starspec("keygen", str(tmp_path))
    assert outcome.code == 2
    assert "already holds" in outcome.err
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
