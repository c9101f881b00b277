"""Places weights and draws a first picture; twice, where that shows weights read from outside.

A weight that is read outside its layer's call is kept in the trunk, which is there for the whole
run. It knows neither pipelines nor cards: both steps are given.
"""

from collections.abc import Callable, Collection, Mapping

from offload import Residency, StateError

Found = Mapping[str, Mapping[str, str]]  # component -> parameter -> one sentence
Attach = Callable[[Mapping[str, Collection[str]]], Residency]  # given what to keep in the trunk
Step = Callable[[Residency], None]


def attach_and_warm_up(attach: Attach, warm_up: Step, say: Callable[[str], None]) -> Residency:
    """A residency whose warm-up read no weight that had left; detached again on any error."""
    residency = attach({})
    found = _watched(residency, warm_up)
    if not found:
        return residency
    for notice in _notices(found):
        say(f"{notice}: it is kept in the trunk")
    residency.detach()
    residency = attach(found)
    again = _watched(residency, warm_up)
    if again:
        residency.detach()
        raise StateError(
            f"{'; '.join(_notices(again))}: what is read while its component does not run can only "
            f"be permanent; set lifetime: permanent for {', '.join(again)}"
        )
    return residency


def _watched(residency: Residency, warm_up: Step) -> Found:
    """What was found; an error after a finding may well come from it, so it does not count."""
    try:
        with residency.outside_reads() as found:
            try:
                warm_up(residency)
            except Exception:
                if not found:
                    raise
    except BaseException:
        residency.detach()
        raise
    return found


def _notices(found: Found) -> list[str]:
    return [notice for component in found.values() for notice in component.values()]
