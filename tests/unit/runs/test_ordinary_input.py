"""What users give in place of a file of YAML, and addresses and names that others would misread."""

from __future__ import annotations

import csv

import numpy as np
import pytest
from stores import Command

import streampca as sp
from streampca.errors import ConfigError


def test_a_mapping_is_a_configuration(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = np.random.default_rng(0).normal(size=(40, 3))
    np.save("x.npy", rows)
    output = {"directory": "out", "report": False, "scores": False}
    finished = sp.run({"source": {"path": "x.npy"}, "model": {"n_components": 2}, "output": output})
    expected = np.linalg.eigvalsh(np.cov(rows.T))[:0:-1]
    np.testing.assert_allclose(finished.model.explained_variance_, expected, rtol=1e-12)


@pytest.mark.parametrize(
    "config",
    [
        {"source": {"path": "https://user:pw@[::1"}},
        {"source": {"path": "x.npy"}, "cluster": {"kind": "address", "address": "127.0.0.1:8786"}},
    ],
)
def test_an_address_that_is_none_is_refused(config):
    with pytest.raises(ConfigError, match="allowed") as told:
        sp.run({**config, "model": {"n_components": 2}})
    assert "user:pw" not in str(told.value)
    assert told.value.exit_status == 2


def test_a_name_in_a_table_of_loadings_is_no_formula(tmp_path, capsys):
    pandas = pytest.importorskip("pandas")
    names = ["=cmd|' /C calc'!A0", "@SUM(A1)", "+cmd", "-1", "plain"]
    table = pandas.DataFrame(np.random.default_rng(0).normal(size=(30, 5)), columns=names)
    sp.PCA(2).fit(table).save(tmp_path / "m")
    assert Command(capsys)("export", tmp_path / "m", tmp_path / "m.csv").status == 0
    with (tmp_path / "m.csv").open(newline="") as file:
        found = [line[0] for line in csv.reader(file)][1:]
    assert found == [f"'{name}" for name in names[:3]] + names[3:]
