"""Files of states: round trips keep values, types and order in memory; damaged files are named errors."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from facade import Block

from streampca.accumulators import Moments
from streampca.errors import DataError
from streampca.storage.state_file import read_state_file, write_state_file

ROWS = np.arange(24, dtype=np.float64).reshape(6, 4)


@pytest.mark.parametrize(
    "array",
    [
        ROWS,
        np.asfortranarray(ROWS),
        ROWS[::2, 1:3],
        np.float32(ROWS),
        ROWS.astype(">i2"),
        ROWS > 3,
        np.array(7),
        np.empty((0, 5)),
    ],
    ids=["C", "Fortran", "view", "float32", "big-endian", "bool", "0-d", "empty"],
)
def test_array_is_read_with_its_type_and_order(tmp_path, array):
    write_state_file(tmp_path / "s.bin", (array, 2))
    read, two = read_state_file(tmp_path / "s.bin")
    np.testing.assert_array_equal(read, array)
    assert (read.dtype, read.shape, two) == (array.dtype, array.shape, 2)
    assert read.flags.c_contiguous == (array.flags.c_contiguous or not array.flags.f_contiguous)
    assert read.flags.f_contiguous == array.flags.f_contiguous


def test_state_of_an_accumulator_is_read_with_numbers_texts_and_scalars(tmp_path):
    accumulator = Moments()
    state = accumulator.update(accumulator.init(4), Block(ROWS))
    value: tuple[Any, ...] = (state, None, True, 3, 0.1, "x", np.float32(0.5), ())
    write_state_file(tmp_path / "s.bin", value)
    read = read_state_file(tmp_path / "s.bin")
    assert type(read[0]) is type(state)
    for name, expected in vars(state).items():
        np.testing.assert_array_equal(getattr(read[0], name), expected)
    assert read[1:] == value[1:]
    assert type(read[6]) is np.float32


def test_members_are_read_by_numpy_alone(tmp_path):
    arrays = (ROWS, np.arange(5))
    size, _ = write_state_file(tmp_path / "s.bin", arrays)
    with open(tmp_path / "s.bin", "rb") as file:
        assert file.readline() == b"streampca state 2\n"
        assert json.loads(file.readline())["n_arrays"] == 2
        for array in arrays:
            np.testing.assert_array_equal(np.load(file), array)
        assert file.tell() == size


def declaring(header):
    text = repr(header).encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: data[:-1], "ends too early"),
        (lambda data: data + b"x", "1 bytes follow its arrays"),
        (lambda data: b"streampca state 1\n" + data[18:], "is not a state of this version"),
        (lambda data: data.replace(b'"n_arrays": 1', b'"n_arrays": 0'), "follow its arrays"),
        (lambda data: data.replace(b'"array": 0', b'"array": 9'), "cannot be read as a state"),
        (
            lambda data: (
                data[: data.index(b"\x93")] + declaring({"descr": "|O", "fortran_order": False, "shape": (1,)})
            ),
            "object",
        ),
        (
            lambda data: (
                data[: data.index(b"\x93")] + declaring({"descr": "<f8", "fortran_order": False, "shape": (2**50,)})
            ),
            "ends too early",
        ),
        (
            lambda data: (
                data[: data.index(b"\x93")] + declaring({"descr": "<f8", "fortran_order": False, "shape": (-1,)})
            ),
            "of shape",
        ),
    ],
    ids=["short", "long", "version", "too few arrays", "no such array", "objects", "huge", "negative"],
)
def test_damaged_file_raises_an_error_that_names_it(tmp_path, change, message):
    path = tmp_path / "s.bin"
    write_state_file(path, (ROWS, 1))
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(DataError, match=message) as raised:
        read_state_file(path)
    assert str(path) in str(raised.value)


def test_objects_are_refused_before_anything_is_written(tmp_path):
    for value in ({"a": 1}, np.array([None]), Block(ROWS), np.array(["text"])):
        with pytest.raises(TypeError):
            write_state_file(tmp_path / "s.bin", (value,))
    assert not list(tmp_path.iterdir())
