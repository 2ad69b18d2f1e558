"""The estimators of `enn.sklearn` behave as scikit-learn wants it. `ENN_TEST_ALL_CHECKS=1` runs all of `check_estimator` (five minutes)."""

import os
import pickle
import unittest

from tables_common import TableTest, series, shop

# Why a check does not apply stands in docs/python.md.
NOT_APPLICABLE = {
    "check_sample_weight_equivalence_on_dense_data": "validation rows are drawn, and a step has a fixed number of rows",
    "check_methods_subset_invariance": "predictions are computed in float32",
}
# The checks that train least, beside those of the tests below.
QUICK_CHECKS = {
    "check_estimator_cloneable",
    "check_estimator_tags_renamed",
    "check_valid_tag_types",
    "check_estimator_repr",
    "check_no_attributes_set_in_init",
    "check_estimators_unfitted",
    "check_do_not_raise_errors_in_init_or_set_params",
    "check_mixin_order",
    "check_sample_weights_not_an_array",
    "check_all_zero_sample_weights_error",
    "check_complex_data",
    "check_estimators_empty_data_messages",
    "check_estimator_sparse_tag",
    "check_estimator_sparse_array",
    "check_estimator_sparse_matrix",
    "check_estimators_nan_inf",
    "check_n_features_in",
    "check_fit1d",
    "check_requires_y_none",
    "check_parameters_default_constructible",
    "check_get_params_invariance",
    "check_set_params",
    "check_dict_unchanged",
    "check_classifiers_one_label",
}
SMALL = {"epochs": 2, "workers": 1}


class Estimators(TableTest):
    def checks(self, estimator):
        from sklearn.utils.estimator_checks import estimator_checks_generator

        generator = estimator_checks_generator(estimator, expected_failed_checks=NOT_APPLICABLE, mark="skip")
        for checked, check in generator:
            name = getattr(check, "func", check).__name__
            if name in NOT_APPLICABLE or not (os.environ.get("ENN_TEST_ALL_CHECKS") or name in QUICK_CHECKS):
                continue
            with self.subTest(check=name, estimator=type(estimator).__name__):
                try:
                    check(checked)
                except unittest.SkipTest:
                    pass

    def test_checks_of_scikit_learn(self):
        import enn

        ENNClassifier = enn.sklearn.ENNClassifier
        ENNRegressor = enn.sklearn.ENNRegressor
        epochs = 30 if os.environ.get("ENN_TEST_ALL_CHECKS") else 1
        for kind in (ENNRegressor, ENNClassifier):
            self.checks(kind(epochs=epochs, workers=1))

    def test_regressor(self):
        import numpy
        from sklearn.base import clone
        from sklearn.model_selection import GridSearchCV, cross_val_score

        from enn.sklearn import ENNRegressor

        frame = shop()
        features = frame.drop(columns="sales")
        scores = cross_val_score(ENNRegressor(**SMALL), features, frame["sales"], cv=2)
        self.assertGreater(scores.min(), 0.7)
        search = GridSearchCV(ENNRegressor(**SMALL), {"lr": [1e-3]}, cv=2).fit(features[["price", "staff"]], frame["sales"])
        model = search.best_estimator_
        self.assertEqual(list(model.feature_names_in_), ["price", "staff"])
        self.assertEqual(model.n_iter_, 2)
        self.assertEqual(clone(model).get_params(), model.get_params())
        with self.assertRaisesRegex(ValueError, "feature names"):
            model.predict(features[["staff", "price"]])
        again = ENNRegressor(**SMALL, lr=1e-3).fit(features[["price", "staff"]], frame["sales"])
        numpy.testing.assert_array_equal(again.predict(features[["price", "staff"]]), model.predict(features[["price", "staff"]]))
        two = ENNRegressor(**SMALL).fit(features[["price"]].to_numpy(), frame[["sales", "staff"]], sample_weight=frame["staff"])
        self.assertEqual(two.predict(features[["price"]].to_numpy()).shape, (len(frame), 2))

    def test_classifier(self):
        import numpy
        from sklearn.datasets import load_iris
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler

        from enn.sklearn import ENNClassifier

        X, y = load_iris(return_X_y=True)
        for classes in (y.astype(float), numpy.array(["b b", "a,", "7"])[y]):
            model = make_pipeline(StandardScaler(), ENNClassifier(**SMALL)).fit(X, classes)
            self.assertGreater(model.score(X, classes), 0.9)
            self.assertEqual(model.predict(X).dtype, classes.dtype)
            probabilities = model.predict_proba(X)
            self.assertEqual(probabilities.shape, (150, 3))
            numpy.testing.assert_allclose(probabilities.sum(axis=1), 1, atol=1e-6)
        same = pickle.loads(pickle.dumps(model))
        numpy.testing.assert_array_equal(same.predict_proba(X), probabilities)
        folder = same[-1].run_.path
        del same
        self.assertFalse(folder.exists())

    def test_forecaster(self):
        from sklearn.base import clone

        from enn.sklearn import ENNForecaster

        frame = series()
        model = clone(ENNForecaster("load", "when", 24, series="site", **SMALL)).fit(frame)
        self.assertEqual(model.predict(frame).shape, (48, 3))
        self.assertGreater(model.score(frame), 0.95)
        with self.assertRaisesRegex(ValueError, "expected a table with the columns of times"):
            model.fit(frame["load"].to_numpy()[:, None])

    def test_settings_that_do_not_exist(self):
        import enn
        from enn.sklearn import ENNRegressor

        frame = shop(40)
        with self.assertRaisesRegex(ValueError, 'settings has the key "ema"'):
            ENNRegressor(settings={"ema": 1}).fit(frame[["price"]], frame["sales"])
        with self.assertRaisesRegex(enn.EnnError, "model.d_modl: unknown key"):
            ENNRegressor(settings={"model.d_modl": 1}).fit(frame[["price"]], frame["sales"])


if __name__ == "__main__":
    unittest.main()
