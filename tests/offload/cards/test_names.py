"""Every name of the package is there, and no other."""

import pytest

from offload import cards


def test_every_name_resolves_to_the_thing_of_that_name():
    for name in cards.__all__:
        assert getattr(cards, name).__name__ == name


def test_an_unknown_name_is_named():
    with pytest.raises(AttributeError, match="no_such_card"):
        cards.no_such_card  # noqa: B018
