"""The tests of sfactory."""
