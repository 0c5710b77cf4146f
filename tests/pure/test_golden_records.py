"""Records of earlier versions stay readable; what a later version adds does no harm."""

from __future__ import annotations

import subprocess
import sys

import msgspec
import pytest

from dex_agents.encoding import decode, encode
from tests.pure.golden_records import FOLDER, full, holds, stored_types

TYPES = stored_types()
GOLDEN = [
    pytest.param(name, bytes(raw), id=f"{path.stem}-{name}")
    for path in sorted(FOLDER.glob("records-*.json"))
    for name, raw in msgspec.json.decode(path.read_bytes(), type=dict[str, msgspec.Raw]).items()
]


def test_every_record_of_today_is_among_them():
    """A new record needs a golden file of the version that first wrote it."""
    assert {param.values[0] for param in GOLDEN} >= {*TYPES}


@pytest.mark.parametrize(("name", "raw"), GOLDEN)
def test_what_an_earlier_version_wrote_is_read(name, raw):
    """Every field that it set is there, with its value."""
    read = decode(raw, TYPES[name])
    assert holds(msgspec.json.decode(encode(read)), msgspec.json.decode(raw))


@pytest.mark.parametrize(("name", "raw"), GOLDEN)
def test_fields_of_a_later_version_are_ignored(name, raw):
    """It is read as if they were not there."""
    stored = msgspec.json.decode(raw)
    more = {"from_the_future": [1, {}], **stored}
    read = encode(decode(encode(more), TYPES[name]))
    assert msgspec.json.decode(read) == msgspec.json.decode(encode(decode(raw, TYPES[name])))


@pytest.mark.parametrize(("name", "raw"), GOLDEN)
def test_fields_that_an_earlier_version_did_not_write_are_defaulted(name, raw):
    """Each field that has a default may be missing, alone and together with the others."""
    stored = msgspec.json.decode(raw)
    fields = [each for each in msgspec.structs.fields(TYPES[name]) if not each.required]
    for missing in (*([each] for each in fields), fields):
        names = {each.encode_name for each in missing}
        rest = {key: value for key, value in stored.items() if key not in names}
        read = decode(encode(rest), TYPES[name])
        for each in missing:
            has_factory = each.default_factory is not msgspec.NODEFAULT
            default = each.default_factory() if has_factory else each.default
            assert getattr(read, each.name) == default


@pytest.mark.parametrize("name", sorted(TYPES))
def test_a_golden_record_sets_every_field(name):
    """So that no field of a new record is forgotten."""
    written = msgspec.json.decode(encode(full(TYPES[name])))
    names = {each.encode_name for each in msgspec.structs.fields(TYPES[name])}
    assert names <= {*written}


def test_a_released_version_is_not_written_again():
    """The file that is there stays as it is, and the script says so."""
    before = {path: path.read_bytes() for path in FOLDER.iterdir()}
    ended = subprocess.run(
        [sys.executable, "-m", "tests.pure.golden_records"], capture_output=True, check=False
    )
    assert ended.returncode != 0
    assert b"FileExistsError" in ended.stderr
    assert {path: path.read_bytes() for path in FOLDER.iterdir()} == before
