"""Methods of kernel PCA: classes whose objects are fits of one table."""
