#include "coordinator/planner/cluster/robust_fit.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace weft::planner {
namespace {

constexpr int kIterations = 40;

/// How far beyond an outlier a robust residual is, squared.
double Excess(const FitProblem& problem, double residual) {
  return std::pow(residual / problem.outlier, 2);
}

/// The share with which each residual counts at its present size.
Vector Weights(const FitProblem& problem, const Vector& residuals) {
  Vector weights(residuals.size(), 1);
  for (size_t i = 0; i < problem.robust; ++i) weights[i] = 1 / (1 + Excess(problem, residuals[i]));
  return weights;
}

double Cost(const FitProblem& problem, const Vector& residuals) {
  double cost = 0;
  for (size_t i = 0; i < residuals.size(); ++i) {
    const double square = residuals[i] * residuals[i];
    cost += (i < problem.robust
                 ? problem.outlier * problem.outlier * std::log1p(Excess(problem, residuals[i]))
                 : square) /
            2;
  }
  return cost;
}

/// By how much each residual grows with each coordinate, at a point within the bounds.
Matrix Slopes(const FitProblem& problem, const Vector& point, const Vector& residuals) {
  constexpr double kStep = 1e-4;
  Matrix slopes;
  for (size_t j = 0; j < point.size(); ++j) {
    // Inwards from an upper bound, beyond which nothing changes.
    Vector nearby = point;
    nearby[j] -= kStep;
    Vector clamped = nearby;
    problem.bound(clamped);
    double step = -kStep;
    if (clamped[j] != nearby[j]) {
      nearby[j] += 2 * kStep;
      step = kStep;
    }
    Vector slope = problem.residuals(nearby);
    for (size_t i = 0; i < slope.size(); ++i) slope[i] = (slope[i] - residuals[i]) / step;
    slopes.push_back(std::move(slope));
  }
  return slopes;
}

}  // namespace

Vector RobustFit(const FitProblem& problem, Vector start) {
  problem.bound(start);
  Vector point = std::move(start);
  Vector residuals = problem.residuals(point);
  double cost = Cost(problem, residuals);
  double damping = 1e-3;
  const size_t n = point.size();
  for (int iteration = 0; iteration < kIterations; ++iteration) {
    const Vector weights = Weights(problem, residuals);
    const Matrix slopes = Slopes(problem, point, residuals);
    Matrix normal(n, Vector(n, 0));
    Vector gradient(n, 0);
    for (size_t j = 0; j < n; ++j) {
      for (size_t i = 0; i < residuals.size(); ++i) {
        gradient[j] -= weights[i] * slopes[j][i] * residuals[i];
        for (size_t k = 0; k <= j; ++k) normal[j][k] += weights[i] * slopes[j][i] * slopes[k][i];
      }
      for (size_t k = 0; k < j; ++k) normal[k][j] = normal[j][k];
    }
    const double before = cost;
    while (damping < 1e8) {
      Matrix damped = normal;
      for (size_t j = 0; j < n; ++j) damped[j][j] *= 1 + damping;
      const Vector change = SolveSymmetric(damped, gradient);
      Vector trial = point;
      for (size_t j = 0; j < n; ++j) trial[j] += std::clamp(change[j], -1.0, 1.0);
      problem.bound(trial);
      Vector trial_residuals = problem.residuals(trial);
      const double trial_cost = Cost(problem, trial_residuals);
      if (trial_cost < cost) {
        point = std::move(trial);
        residuals = std::move(trial_residuals);
        cost = trial_cost;
        damping = std::max(damping / 5, 1e-9);
        break;
      }
      damping *= 4;
    }
    if (before - cost < 1e-9 * (1 + before)) break;
  }
  return point;
}

}  // namespace weft::planner
