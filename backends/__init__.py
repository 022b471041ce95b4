"""What turns a kernel plan into something that runs; imported as `attnfuse.backends`."""

# The folder stands at the top of the checkout, where Python would also find it as `backends`.
# Under two names every backend would exist twice, so the second name is refused.
if __name__ != "attnfuse.backends":
    raise ImportError(f"import attnfuse.backends, not {__name__}")
