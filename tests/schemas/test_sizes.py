"""Parsing and formatting of sizes."""

from __future__ import annotations

import pytest

from schemas.errors import UsageError
from schemas.sizes import format_size, parse_size, unit_hint


@pytest.mark.parametrize(
    ("text", "size"),
    [("8B", 8), ("64MiB", 64 << 20), ("1.5GiB", 3 << 29), ("5MB", 5_000_000), ("10 kb", 10_000), ("7", 7), ("0", 0)],
)
def test_sizes_are_read(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "MiB", "-1MiB", "1 parsec", "1e3", "9999999TiB", "1MiB2"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="a size is"):
        parse_size(text)


@pytest.mark.parametrize("text", [None, "1048576", "64B", "64KiB", "1MiB", "0.5"])
def test_sizes_that_lack_nothing(text: str | None) -> None:
    assert unit_hint(text) == ""


def test_a_bare_number_below_a_mebibyte_may_lack_its_unit() -> None:
    assert unit_hint(" 64 ") == "64 is 64 bytes; is its unit missing, as in 64MiB?"


def test_sizes_are_shown() -> None:
    assert [format_size(n) for n in (0, 900, 1 << 20, 3 << 29)] == ["0 B", "900 B", "1 MiB", "1.5 GiB"]
