"""YAML from elsewhere: odd, hostile or just wrong, it costs little and is one sentence."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from rankprune.lab.recipes import yaml_file
from rankprune.lab.recipes.errors import RecipeError

BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 10)
)
MERGES = "a0: &a0 {x: 1}\n" + "".join(f"a{i}: &a{i} {{<<: [*a{i - 1}, *a{i - 1}]}}\n" for i in range(1, 20))
CHAIN = "a0: &a0 [x]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}]\n" for i in range(1, 2000))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (BOMB, "more than a billion values with its aliases expanded, and a recipe may hold 20000"),
        (MERGES, "values with its aliases"),
        (CHAIN, "nested more than 50 deep"),
        ("a: &a [*a]", "an alias refers to a value that contains it"),
        ("a: &a {b: *a}", "an alias refers to a value"),
        ("a: *b", "found undefined alias 'b'"),
        ("\n".join(f"k{i}: 1" for i in range(20_000)), "holds 40001 values"),
        ("[" * 100_000, "nested more than 50 deep"),
        ("{a: " * 300, "is not"),
        ("- " * 100_000, "nested more than 50 deep"),
        ('a: !!int ""', "at line 1: '' is not a valid int"),
        ('a: !!int "x"', "'x' is not a valid int"),
        ('a: !!float "x"', "'x' is not a valid float"),
        ('a: !!bool "x"', "'x' is not a valid bool"),
        ('a: !!timestamp "x"', "'x' is not a valid timestamp"),
        ("a: 2023-02-31", "'2023-02-31' is not a valid timestamp"),
        ("a: !!int [1]", "expected a scalar node"),
        ("a: 0x" + "f" * 60, "a number of 240 bits is too large"),
        ("a: " + "9" * 5000, "is not a valid int"),
        ("? [1]\n: 2", "cannot be a key"),
        ("? {a: 1}\n: 2", "cannot be a key"),
        ("a: 1\na: 2", "'a' is given twice"),
        ("a: !!python/object:os.system x", "could not determine a constructor"),
        ("a: \x00", "special characters are not allowed"),
        ("a: 1\n---\nb: 2", "found another document"),
    ],
)
def test_one_sentence(text: str, sentence: str) -> None:
    with pytest.raises(RecipeError) as caught:
        yaml_file.parse(text, "the file")
    assert str(caught.value).startswith("the file ")
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


def test_aliases_that_stay_small_are_read() -> None:
    text = "a: &a {lr: 5e-4}\nb: [*a, 1]\nc: *a"
    assert yaml_file.parse(text, "") == {"a": {"lr": 5e-4}, "b": [{"lr": 5e-4}, 1], "c": {"lr": 5e-4}}
    assert yaml_file.parse("", "") is None


def test_the_time_grows_with_the_length_alone() -> None:
    """Keys once were compared with one another: four times as many took sixteen times as long."""

    def spent(keys: int) -> float:
        text = "\n".join(f"k{i}: 1" for i in range(keys))
        start = time.process_time()
        assert len(yaml_file.parse(text, "")) == keys
        return time.process_time() - start

    few = min(spent(2_000) for _ in range(3))
    assert min(spent(8_000) for _ in range(2)) < 9 * few


def test_a_file_may_not_be_long(tmp_path: Path) -> None:
    path = tmp_path / "long.yaml"
    path.write_text("# " + "x" * yaml_file.MAX_BYTES)
    with pytest.raises(RecipeError, match=r"long\.yaml is larger than 256 kB"):
        yaml_file.read(path)


def test_what_is_written_has_no_aliases() -> None:
    shared = [1, 2]
    assert "&" not in yaml_file.dump({"a": shared, "b": shared})
