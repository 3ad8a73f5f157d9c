"""Where all ranks are: stacks merged, outliers against their group, collectives per group."""
