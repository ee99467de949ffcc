"""What is seen meanwhile: figures of the step so far, in the terminal and on the page."""
