"""The words for clients, sensors and parameters that the contract and the settings share. They are
apart from the contract because settings are checked without importing torch."""

SERVER = -1  # the aggregator of a star, where clients are numbered from 0
Modality = str  # a sensor stream: "acc", "csi", ...
BY_MODEL = "by_model"  # the setting, of methods that have one, that sets their `needs.same_model`
NEWCOMERS = "newcomers"  # the split of scores of clients that take no part in training
MOST_FREQUENT = "most_frequent"  # their view that always says the members' most frequent class
PARTS = ("encoders", "fusion", "head", "unimodal", "private")  # first components of all paths
Path = str  # a parameter's name in the model: "encoders.acc.conv1.weight"
