"""Scripts of the project itself: set-up, generated documentation. Not part of the package."""
