// The network between machines: two workers on different ones measure it as they join, and again
// when that is long ago, so that plans and placement know what lies between them.
#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "common/clock.h"
#include "common/log.h"
#include "common/secret.h"
#include "coordinator/planner/calibration/timed_run.h"
#include "coordinator/service/service.h"

namespace weft::coordinator {
namespace {

/// A measurement takes a second or two; the workers close their port after the limit, and nobody
/// waits for them longer.
constexpr std::chrono::seconds kLimit{5};
constexpr std::chrono::seconds kPatience{6};
/// A worker that lives opens its port at once.
constexpr std::chrono::seconds kPortPatience{2};
/// Between different machines, at a time.
constexpr size_t kMostAtOnce = 8;
constexpr size_t kTokenBytes = 32;
/// New rates make plans void that are being looked for: they come together, so often at most.
constexpr std::chrono::seconds kRatesEvery{30};
constexpr int kBitsOfGib = 30;
/// Rates that differ by a smaller part of them count as the same.
constexpr double kAboutTheSame = 0.1;
/// Seconds; a difference that is less is noise.
constexpr double kShortLatency = 20e-6;

/// Machines of one kind get one rate: each would else be a kind of its own for the planner.
std::string HardwareKind(const WorkerProfile& machine) {
  std::string kind = planner::MachineKind(machine) + ", " + std::to_string(machine.cores) +
                     " cores, " + std::to_string(machine.memory_bytes >> kBitsOfGib) + " GiB";
  for (const DeviceSpec& device : machine.devices) kind += ", " + device.name;
  return kind;
}

}  // namespace

Status Service::LoadLinks() {
  WEFT_ASSIGN_OR_RETURN(const std::vector<LinkRecord> records, store_.ListLinks());
  links_.Load(records);
  for (const LinkRecord& link : records) {
    metrics_.SetLink(link.machine_a, link.machine_b, link.bytes_per_second, link.latency_seconds);
  }
  return OkStatus();
}

void Service::JoinLinks(Session& session) {
  if (session.machine.empty()) return;
  const std::vector<LinkView> before = links_.Of(session.machine);
  std::set<std::string> hosts;
  for (const auto& [id, other] : sessions_) {
    if (other.machine == session.machine && !other.lost) hosts.insert(other.profile.host);
  }
  std::unique_lock lock(view_mutex_);
  const bool moved = links_.Join(session.machine, hosts);
  SetNetworkRate(session);
  lock.unlock();
  // The first of its kind that was measured, as after a restart.
  if (!network_rates_.contains(HardwareKind(session.profile)) && links_.RateOf({session.machine})) {
    SetNetworkRates();
  }
  if (!moved) return;
  WEFT_LOG_INFO << "machine " << session.machine
                << " has another address; its network is measured again";
  for (const LinkView& link : before) {
    const MachinePair pair = PairOf(session.machine, link.machine);
    metrics_.RemoveLink(pair.first, pair.second);
  }
  ForgetLinksOf(session.machine);
  SetNetworkRatesSoon();
}

void Service::MeasureLinks() {
  if (options_.links_per_machine == 0 || link_calls_.size() >= kMostAtOnce) return;
  // Jobs that wait for machines get them once what is under way ends.
  if (queue_waits_ && !link_calls_.empty()) return;
  std::set<std::string> reserved;
  for (const auto& [ordinal, live] : queue_) {
    if (live->reserved) {
      reserved.insert(live->reserved->rank_workers.begin(), live->reserved->rank_workers.end());
    }
  }
  // A machine is measured through one of its workers, and only while none of them has ranks.
  std::map<std::string, const Session*> idle;
  std::set<std::string> busy;
  for (const auto& [id, session] : sessions_) {
    if (session.machine.empty()) continue;
    if (!JobsOn(id).empty() || reserved.contains(id) || session.stale_ranks ||
        IsMeasured(session.machine) || !MayTakeRanks(id, session)) {
      busy.insert(session.machine);
    } else if (session.link && !session.lost && !session.draining && leases_.IsValid(id)) {
      idle.emplace(session.machine, &session);
    }
  }
  std::vector<std::string> names;
  for (const auto& [machine, session] : idle) {
    if (!busy.contains(machine)) names.push_back(machine);
  }
  if (names.size() < 2) return;
  for (const MachinePair& pair : links_.Choose(
           names, clock_.Monotonic(), kMostAtOnce - link_calls_.size(), OldLinksBefore())) {
    StartLink(pair, *idle.at(pair.first), *idle.at(pair.second));
  }
}

double Service::OldLinksBefore() const {
  // Where jobs always wait, they wait a second or two more for links that are very old.
  const double age = ToSeconds(options_.link_age) * (queue_waits_ ? 2 : 1);
  return age > 0 ? clock_.UnixSeconds() - age : 0;
}

void Service::StartLink(const MachinePair& pair, const Session& listener, const Session& dialler) {
  const int64_t id = next_link_++;
  LinkCall& call = link_calls_[id];
  call.record.machine_a = pair.first;
  call.record.machine_b = pair.second;
  call.record.host_a = listener.profile.host;
  call.record.host_b = dialler.profile.host;
  call.listener = listener.link;
  call.dialler = dialler.link;
  call.order = {id, RandomBytes(kTokenBytes), ToSeconds(kLimit), "", 0};
  call.listener->MeasureLink(call.order);
  loop_.PostAfter(kPortPatience, [this, id] {
    const auto it = link_calls_.find(id);
    if (it != link_calls_.end() && it->second.order.port == 0) {
      EndLink(id, UnavailableError("the worker at " + it->second.record.host_a +
                                   " did not open a port in time"));
    }
  });
  loop_.PostAfter(kPatience, [this, id] {
    EndLink(id, UnavailableError("its workers did not answer in time"));
  });
}

void Service::ReportLink(const std::shared_ptr<WorkerLink>& link, LinkAnswer answer) {
  loop_.Post([this, link, answer = std::move(answer)] {
    const auto it = link_calls_.find(answer.request_id);
    if (it == link_calls_.end()) return;
    LinkCall& call = it->second;
    if (link != call.listener && link != call.dialler) return;
    if (!answer.error.empty()) {
      EndLink(answer.request_id, UnavailableError(answer.error));
    } else if (link == call.listener) {
      call.order.host = call.record.host_a;
      call.order.port = answer.port;
      call.dialler->MeasureLink(call.order);
    } else {
      EndLink(answer.request_id, answer);
    }
  });
}

void Service::EndLink(int64_t request_id, const Result<LinkAnswer>& answer) {
  const auto it = link_calls_.find(request_id);
  if (it == link_calls_.end()) return;
  LinkRecord record = std::move(it->second.record);
  link_calls_.erase(it);
  const auto is_rate = [](double rate) { return std::isfinite(rate) && rate > 0; };
  const bool sound = answer.ok() && is_rate(answer->send_bytes_per_second) &&
                     is_rate(answer->receive_bytes_per_second) &&
                     is_rate(answer->round_trip_seconds);
  metrics_.LinkMeasured(sound);
  if (sound) {
    record.bytes_per_second =
        std::min(answer->send_bytes_per_second, answer->receive_bytes_per_second);
    record.latency_seconds = answer->round_trip_seconds / 2;
    record.measured_at = clock_.UnixSeconds();
    metrics_.SetLink(record.machine_a, record.machine_b, record.bytes_per_second,
                     record.latency_seconds);
    WEFT_LOG_INFO << "network between " << record.machine_a << " and " << record.machine_b << ": "
                  << record.bytes_per_second / 1e6 << " MB/s, " << record.latency_seconds * 1e6
                  << " us";
    {
      std::lock_guard lock(view_mutex_);
      links_.Put(record);
    }
    Transaction change;
    change.link = std::move(record);
    store_.Commit(std::move(change), [this](const Result<CommitResult>& result) {
      if (!result.ok()) metrics_.StoreFailed();
    });
    SetNetworkRatesSoon();
  } else {
    const std::string why =
        answer.ok() ? "its workers reported no rate" : answer.status().message();
    WEFT_LOG_WARNING << "network between " << record.machine_a << " and " << record.machine_b
                     << " could not be measured: " << why;
    std::lock_guard lock(view_mutex_);
    const Duration pause =
        links_.Fail({record.machine_a, record.machine_b}, why, clock_.Monotonic());
    loop_.PostAfter(pause, [this] { ScheduleSoon(); });
  }
  ScheduleSoon();
}

void Service::EndLinksOf(const std::shared_ptr<WorkerLink>& link) {
  std::vector<int64_t> ids;
  for (const auto& [id, call] : link_calls_) {
    if (call.listener == link || call.dialler == link) ids.push_back(id);
  }
  for (const int64_t id : ids) EndLink(id, UnavailableError("a worker lost its connection"));
}

void Service::AddLinks(SchedulerSnapshot& snapshot) const {
  std::map<std::string, std::vector<std::string>> workers_of;
  for (const WorkerProfile& worker : snapshot.cluster.workers) {
    const auto session = sessions_.find(worker.worker_id);
    if (session == sessions_.end() || session->second.machine.empty()) continue;
    workers_of[session->second.machine].push_back(worker.worker_id);
  }
  for (const auto& [pair, link] : links_.links()) {
    const auto some = workers_of.find(pair.first), others = workers_of.find(pair.second);
    if (some == workers_of.end() || others == workers_of.end()) continue;
    const int64_t level = LinkLevel(link.bytes_per_second);
    for (const std::string& one : some->second) {
      for (const std::string& other : others->second) {
        snapshot.links.push_back({one, other, level});
      }
    }
  }
}

bool Service::IsMeasured(const std::string& machine) const {
  return std::any_of(link_calls_.begin(), link_calls_.end(), [&](const auto& entry) {
    const LinkRecord& record = entry.second.record;
    return record.machine_a == machine || record.machine_b == machine;
  });
}

void Service::ForgetLinksOf(const std::string& machine) {
  Transaction change;
  change.forget_links_of = {machine};
  store_.Commit(std::move(change), [this](const Result<CommitResult>& result) {
    if (!result.ok()) metrics_.StoreFailed();
  });
}

void Service::ForgetOldLinks() {
  std::set<std::string> there;
  for (const auto& [id, session] : sessions_) there.insert(session.machine);
  {
    std::lock_guard lock(view_mutex_);
    links_.ForgetFailures(there, clock_.Monotonic());
  }
  const double old_before = OldLinksBefore();
  const bool some_are_old =
      std::any_of(links_.links().begin(), links_.links().end(),
                  [&](const auto& entry) { return entry.second.measured_at < old_before; });
  // In a cluster where nothing else happens no pass would measure them again.
  if (some_are_old) ScheduleSoon();
  const RetentionRules& rules = options_.retention;
  if (rules.lost_workers.count() == 0) return;
  const double before = clock_.UnixSeconds() - ToSeconds(rules.lost_workers);
  std::set<std::string> old, young;
  for (const auto& [pair, link] : links_.links()) {
    for (const std::string& machine : {pair.first, pair.second}) {
      if (!there.contains(machine)) (link.measured_at < before ? old : young).insert(machine);
    }
  }
  for (const std::string& machine : old) {
    if (young.contains(machine)) continue;
    for (const LinkView& link : links_.Of(machine)) {
      const MachinePair pair = PairOf(machine, link.machine);
      metrics_.RemoveLink(pair.first, pair.second);
    }
    ForgetLinksOf(machine);
    std::lock_guard lock(view_mutex_);
    links_.Forget(machine);
  }
  if (!old.empty()) SetNetworkRatesSoon();
}

void Service::SetNetworkRatesSoon() {
  if (rates_pending_) return;
  rates_pending_ = true;
  auto set = [this] {
    rates_pending_ = false;
    next_rates_ = clock_.Monotonic() + kRatesEvery;
    SetNetworkRates();
    ScheduleSoon();
  };
  const Duration rest = next_rates_ - clock_.Monotonic();
  if (rest > Duration(0)) {
    loop_.PostAfter(rest, set);
  } else {
    set();
  }
}

void Service::SetNetworkRates() {
  std::map<std::string, std::set<std::string>> machines;
  for (const auto& [id, session] : sessions_) {
    if (!session.machine.empty()) {
      machines[HardwareKind(session.profile)].insert(session.machine);
    }
  }
  network_rates_.clear();
  for (const auto& [kind, names] : machines) {
    const std::optional<double> rate = links_.RateOf(names);
    if (rate) network_rates_[kind] = {*rate, links_.LatencyOf(names).value_or(0)};
  }
  std::lock_guard lock(view_mutex_);
  for (auto& [id, session] : sessions_) SetNetworkRate(session);
}

void Service::SetNetworkRate(Session& session) {
  double& rate = session.profile.network_bytes_per_second;
  double& latency = session.profile.network_latency_seconds;
  rate = session.given_network;
  latency = 0;
  // One TCP stream is what ranks on processors get. NCCL gets no less of the same network, and more
  // where it has several connections or RDMA: of GPUs the rate is a lower bound, and says nothing
  // of a network that the user has stated.
  if (session.machine.empty() || (rate > 0 && !session.profile.devices.empty())) return;
  const auto measured = network_rates_.find(HardwareKind(session.profile));
  if (measured == network_rates_.end()) return;
  if (rate == 0) rate = measured->second.bytes_per_second;
  latency = measured->second.latency_seconds;
}

std::optional<ClusterProfile> Service::PlaceByItsLinks(const Plan& plan) const {
  if (links_.links().empty()) return std::nullopt;
  std::map<std::string, int64_t> ranks_on;
  for (const std::string& id : plan.rank_workers) ++ranks_on[id];
  if (ranks_on.size() < 2) return std::nullopt;
  std::set<std::string> machines;
  for (const auto& [id, ranks] : ranks_on) {
    const auto session = sessions_.find(id);
    if (session == sessions_.end() || session->second.given_network > 0) return std::nullopt;
    machines.insert(session->second.machine);
  }
  const std::optional<double> slowest = links_.SlowestBetween(machines);
  if (!slowest) return std::nullopt;
  const double longest = links_.LongestLatencyBetween(machines).value_or(0);
  ClusterProfile place;
  bool differs = false;
  for (const auto& [id, ranks] : ranks_on) {
    WorkerProfile& worker = place.workers.emplace_back(Calibrated(sessions_.at(id).profile));
    // No more ranks than the plan has there, also where there are more GPUs.
    worker.cores = ranks * plan.threads_per_rank;
    double& rate = worker.network_bytes_per_second;
    double& latency = worker.network_latency_seconds;
    differs |= std::fabs(rate / *slowest - 1) > kAboutTheSame ||
               std::fabs(latency - longest) > std::max(kAboutTheSame * longest, kShortLatency);
    rate = *slowest;
    latency = longest;
  }
  return differs ? std::optional(std::move(place)) : std::nullopt;
}

}  // namespace weft::coordinator
