"""Native kernels in C++, compiled on the user's machine for its own processor."""
