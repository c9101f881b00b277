"""Stock pipelines, each built once for all tests of these files."""

import pytest

from tests.stock.managed import Stock, stock_of
from tests.stock.recipes import RECIPES


@pytest.fixture(params=RECIPES, ids=[recipe.name for recipe in RECIPES])
def stock(request: pytest.FixtureRequest) -> Stock:
    return stock_of(request.param)
