#include <thread>

#include <gtest/gtest.h>

#include "common/env_fault.h"
#include "worker/engine/comm/file_store.h"
#include "worker/engine/comm/hash_store.h"
#include "worker/engine/comm/prefix_store.h"

namespace weft::engine {
namespace {

using std::chrono::milliseconds;

void ExpectStoreContract(Store& store) {
  const std::string binary("a\0\xff\n", 4);
  ASSERT_TRUE(store.Set("rank/0", binary).ok());
  ASSERT_TRUE(store.Set("rank", "").ok());
  EXPECT_EQ(*store.Get("rank/0", milliseconds(0)), binary);
  EXPECT_EQ(*store.Get("rank", milliseconds(0)), "");
  ASSERT_TRUE(store.Set("rank", "new").ok());
  EXPECT_EQ(*store.Get("rank", milliseconds(0)), "new");

  Result<std::string> missing = store.Get("nobody", milliseconds(20));
  EXPECT_EQ(missing.status().code(), StatusCode::kUnavailable);
  EXPECT_NE(missing.status().message().find("nobody"), std::string::npos);

  std::thread late([&] {
    std::this_thread::sleep_for(milliseconds(20));
    EXPECT_TRUE(store.Set("late", "here").ok());
  });
  EXPECT_EQ(*store.Get("late", milliseconds(10000)), "here");
  late.join();
}

TEST(Store, InMemory) {
  HashStore store;
  ExpectStoreContract(store);
}

TEST(Store, InAFolder) {
  FaultEnv env;
  FileStore store(env, "/run/rendezvous");
  ExpectStoreContract(store);
  FileStore other_rank(env, "/run/rendezvous");
  EXPECT_EQ(*other_rank.Get("rank", milliseconds(0)), "new");
}

TEST(Store, WithAPrefixHasKeysOfItsOwn) {
  HashStore all;
  PrefixStore part(&all, "part/");
  ExpectStoreContract(part);
  EXPECT_EQ(*all.Get("part/rank", milliseconds(0)), "new");
  EXPECT_FALSE(all.Get("rank", milliseconds(0)).ok());
}

}  // namespace
}  // namespace weft::engine
