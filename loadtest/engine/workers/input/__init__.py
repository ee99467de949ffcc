"""Requests' inputs out of the user's own file: it is read, its rows are dealt to requests, and these are made ready
ahead of the instants at which they are due.
"""
