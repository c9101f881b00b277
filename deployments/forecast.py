"""What each replica is expected to take: the plan's prediction, then what its jobs really took.

It knows what replicas say of themselves; nothing of lines, clocks or Ray.
"""

from deployments.messages import ReplicaState, State
from deployments.pace import Pace, Shape, Speed
from deployments.rank import Candidate

ASSUMED_WAKE_S = 5.0  # where a replica never said how long it takes to place its weights


class Forecast:
    """Seconds of a job, by replica; forgotten when the replica is."""

    def __init__(self) -> None:
        self._usual: Shape | None = None
        self._paces: dict[str, Pace] = {}

    def expect(self, usual: Shape) -> None:
        """The request that predictions are of."""
        self._usual = usual

    def job_ended(self, state: ReplicaState, shape: Shape, seconds: float) -> None:
        """A job was served there; one that had to wake the replica first teaches nothing."""
        if state.state is not State.SLEEPING:
            self._paces[state.id] = self._paces.get(state.id, Pace()).with_one(shape, seconds)

    def forget(self, replica_id: str) -> None:
        self._paces.pop(replica_id, None)

    def speed(self, state: ReplicaState) -> Speed | None:
        """As measured, else as predicted, else None."""
        pace = self._paces.get(state.id)
        if pace is None and self._usual is not None and state.predicted_s > 0:
            pace = Pace().with_one(self._usual, state.predicted_s)
        return None if pace is None else pace.speed

    def candidate(self, state: ReplicaState) -> Candidate:
        """The replica as the ranking sees it, with nothing in its line."""
        return Candidate(
            id=state.id,
            state=state.state,
            speed=self.speed(state),
            wake_s=state.stages.get("place", ASSUMED_WAKE_S),  # it places its weights again
            max_pixels=state.limits.get("max_pixels"),
        )
