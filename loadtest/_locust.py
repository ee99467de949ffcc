"""Locust as a program of ours. It puts the working directory first in the path, where a file that is named like this
package would be taken for it: so the package is there before."""

from locust.main import main

import tailrate.analysis
import tailrate.loadtest
import tailrate.serve  # noqa: F401

if __name__ == "__main__":
    main()
