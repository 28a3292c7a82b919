import pytest

from transport.text import amount, plain


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("an ordinary line, with ü and 日本", "an ordinary line, with ü and 日本"),
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("\x1b]2;title\x1b\\text", "text"),
        ("\x1b]52;c;cm0gLXJm\x07text", "text"),
        ("\x1b", "\\x1b"),
        ("\x1b[", "\\x1b["),
        ("a\x1bcb", "a\\x1bcb"),  # ESC c resets a terminal
        ("\x9b2Jtext", "\\x9b2Jtext"),  # the same as ESC [ to some
        ("0%\r50%\r100%", "100%"),
        ("done\r\n", "done"),
        ("one\ttwo\xa0three", "one two three"),
        ("bell\x07 null\x00 left\u202e", "bell\\x07 null\\x00 left\\u202e"),
        ("\ud800", "\\ud800"),
    ],
)
def test_no_character_that_steers_a_terminal_is_left(text: str, shown: str) -> None:
    assert plain(text) == shown and plain(shown) == shown


@pytest.mark.parametrize(
    ("value", "text"),
    [(1523.44, "1,523.4"), (-10.0, "-10.0"), (7.934, "7.93"), (0.7435, "0.744"), (-0.0123, "-0.0123"), (0.0, "0.0")],
)
def test_small_amounts_have_more_digits(value: float, text: str) -> None:
    assert amount(value) == text
