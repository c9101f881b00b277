"""What was measured is kept for the next start, and not used where it would be wrong."""

import json
from dataclasses import replace

import pytest

from deployments.config import AppConfig
from deployments.record_key import record_key
from deployments.records import Record, Records
from offload import CardFacts, ComponentMeasured, Measured

MEASURED = Measured(
    components={
        "transformer": ComponentMeasured(
            passes=20,
            uses={"blocks.0": 20},
            order=("blocks.0",),
            first_s={"blocks.0": 0.5},
            later_s={"blocks.0": 0.25},
            gaps=(("controlnet",), ("controlnet",)),
            activation_bytes=123,
        )
    },
    copy_bytes_per_s=2e9,
    seconds=1.5,
    peak_bytes=456,
    source="measured at 128x128",
)
RECORD = Record(measured=MEASURED, kept=False, reason="it is slower", seconds=1.25, peak_bytes=9)
KEY = {"card": {"memory_bytes": 24}, "versions": {"torch": "2"}}


def records(folder, said=None, key=KEY, model="demo", card="mini-5090") -> Records:
    say = [].append if said is None else said.append
    return Records(None if folder is None else str(folder), model, card, key, say)


def test_what_was_written_is_read_again_equal(tmp_path):
    records(tmp_path / "made").write(RECORD)
    assert records(tmp_path / "made").read() == RECORD


def test_without_a_folder_nothing_is_kept_and_nothing_is_said():
    said: list[str] = []
    records(None, said).write(RECORD)
    assert records(None, said).read() is None
    assert said == []


def test_a_first_start_says_nothing(tmp_path):
    said: list[str] = []
    assert records(tmp_path, said).read() is None
    assert said == []


def test_a_record_of_other_circumstances_is_not_used_and_says_which(tmp_path):
    records(tmp_path).write(RECORD)
    said: list[str] = []
    now = {"card": {"memory_bytes": 32}, "versions": {"torch": "2"}, "new": 1}
    assert records(tmp_path, said, now).read() is None
    assert len(said) == 1
    assert "card: memory_bytes 24, now 32; new None, now 1" in said[0]
    assert "torch" not in said[0]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda text: text[: len(text) // 2],
        lambda text: "[]",
        lambda text: text.replace('"passes"', '"laps"'),
        lambda text: text.replace('"version": 1', '"version": 0'),
        lambda text: text.replace('"kept"', '"held"'),
    ],
    ids=["half", "list", "field", "layout", "record"],
)
def test_a_file_that_is_no_record_costs_a_line_not_the_start(tmp_path, spoil):
    records(tmp_path).write(RECORD)
    (file,) = tmp_path.iterdir()
    file.write_text(spoil(file.read_text()))
    said: list[str] = []
    assert records(tmp_path, said).read() is None
    assert len(said) == 1
    assert str(file) in said[0]


def test_a_folder_that_cannot_be_written_costs_a_line_not_the_start(tmp_path):
    (tmp_path / "file").write_text("")
    said: list[str] = []
    records(tmp_path / "file", said).write(RECORD)
    assert len(said) == 1
    assert "could not be written" in said[0]


def test_cards_and_models_have_files_of_their_own_and_odd_names_stay_in_the_folder(tmp_path):
    records(tmp_path, model="../Qwen/Image", card="RTX 4090").write(RECORD)
    records(tmp_path, model="../Qwen/Image", card="RTX 5090").write(replace(RECORD, kept=True))
    assert len(list(tmp_path.iterdir())) == 2
    assert records(tmp_path, model="../Qwen/Image", card="RTX 4090").read() == RECORD


# --- what has to be the same ---------------------------------------------------------------------
CARD = CardFacts(name="mini", memory_bytes=24 << 20, free_bytes=20 << 20)


def key_of(folder, card=CARD, **changes):
    values = {"model": {"name": "m", "path": str(folder)}, "limits": {"max_pixels": 4096}}
    values["defaults"] = {"size": "64x64"}
    return record_key(AppConfig.model_validate({**values, **changes}), card)


def test_memory_that_is_free_today_does_not_make_a_record_stale(tmp_path):
    assert key_of(tmp_path, replace(CARD, free_bytes=1)) == key_of(tmp_path)


@pytest.mark.parametrize(
    "changes",
    [
        {"limits": {"max_pixels": 8192}},
        {"defaults": {"size": "32x64"}},
        {"components": {"vae": {"tiling": True}}},
        {"model": {"name": "m", "dtype": "float16"}},
        {"card": replace(CARD, memory_bytes=1)},
    ],
    ids=["limits", "defaults", "tiling", "dtype", "card"],
)
def test_what_changes_the_measurements_makes_it_stale(tmp_path, changes):
    assert key_of(tmp_path, **changes) != key_of(tmp_path)


def test_another_checkpoint_in_the_same_place_makes_it_stale(tmp_path):
    (tmp_path / "vae").mkdir()
    file = tmp_path / "vae" / "model.safetensors"
    file.write_bytes(b"12")
    before = key_of(tmp_path)
    file.write_bytes(b"123")
    assert key_of(tmp_path) != before
    assert json.loads(json.dumps(before)) == before
