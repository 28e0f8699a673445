"""What launchers of 0.1.0 that an upgrade in place has overtaken before their tasks ran ask for. To go after 0.2.0."""


def noted(end: object, *_: object) -> object:
    """A verdict with the warning: there is none."""
    return end
