"""A request that is not answered as asked, and the sentence that says why."""

__all__ = ["RefusedError"]


class RefusedError(Exception):
    """A request that is refused; the message is one sentence that says what to send instead.

    Args:
        status: HTTP status of the answer.
        sentence: The message; it names nothing of this machine.
    """

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status
