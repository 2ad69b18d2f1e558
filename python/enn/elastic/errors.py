"""The exceptions of elastic training."""


class ElasticError(RuntimeError):
    """A mistake in the script, or a recovery that is not possible: the sentence says what to change."""


class Interrupted(BaseException):
    """The round is over, so the training function is left and will be entered again.

    It does not derive from `Exception`: an `except Exception` around a step does not stop it. Let it pass.
    """

    def __init__(self, reason: str = "the round is over"):
        super().__init__(reason)


class Stopped(BaseException):
    """The launcher asks for the end of training, and all ranks have done the same step: the training function is left."""
