"""The largest picture that is admitted is the one that is measured, and it shrinks when it must."""

from itertools import pairwise

from deployments.admitted import largest_size, smaller_size


def test_the_largest_square_within_the_limit_in_whole_multiples():
    assert largest_size(1024 * 1024, (512, 512), 16) == (1024, 1024)
    assert largest_size(1000 * 1000, (512, 512), 16) == (992, 992)
    assert largest_size(16384, (128, 128), 16) == (128, 128)


def test_the_default_size_where_it_has_more_pixels_than_that_square():
    assert largest_size(832 * 480, (832, 480), 32) == (832, 480)


def test_it_shrinks_to_about_half_the_pixels_down_to_one_multiple():
    size, areas = (1024, 512), []
    while size is not None:
        assert all(side % 16 == 0 for side in size)
        areas.append(size[0] * size[1])
        size = smaller_size(size, 16)
    halvings = [after / before for before, after in pairwise(areas[:-2])]
    assert all(0.3 < share < 0.6 for share in halvings)
    assert smaller_size((16, 16), 16) is None
