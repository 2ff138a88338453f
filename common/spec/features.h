#pragma once

#include "common/spec/compatibility.h"

/// What rows of refusals are about (compatibility.h). A feature is here once; a row names it.
namespace weft::features {

// How ranks divide the work.
extern const Feature kTensorParallel;
extern const Feature kTensorParallel2d;
extern const Feature kSequenceParallel;
extern const Feature kContextParallel;
extern const Feature kPipelineParallel;
extern const Feature kZeroBubble;
extern const Feature kExpertParallel;
extern const Feature kZero;
extern const Feature kZeroGradients;
extern const Feature kZeroParameters;
extern const Feature kZeroParametersOnDevice;
extern const Feature kBf16Reduction;
extern const Feature kLocalSteps;
extern const Feature kLocalStepsOffloaded;
extern const Feature kTimedRounds;
extern const Feature kMeshDeterminism;
extern const Feature kSharedTables;
extern const Feature kReplay;
extern const Feature kBatchWarmup;
extern const Feature kTryPlans;
extern const Feature kPeerSnapshots;

// Phases, and how the model of one grows from that before.
extern const Feature kPhases;
extern const Feature kOtherTensors;
extern const Feature kPhaseSearch;
extern const Feature kSearchedTechniques;
extern const Feature kMultiLevelGrowth;
extern const Feature kLearnedGrowth;
extern const Feature kGrowthOtherThanStack;
extern const Feature kGrowthOfDepth;
extern const Feature kGrowthOfWidth;
extern const Feature kGrowthOfWidthByCopies;
extern const Feature kOtherImages;
extern const Feature kNewBlocksNotCopied;
extern const Feature kIdentityBlocks;
extern const Feature kFreezeOld;
extern const Feature kKeptGrowthState;
extern const Feature kAsymmetricGrowthState;

// Where state and activations reside, and what is recomputed.
extern const Feature kCuda;
extern const Feature kEmulatedMemory;
extern const Feature kEmulatedLink;
extern const Feature kOffloadOptimizer;
extern const Feature kOffloadParameters;
extern const Feature kParametersInFile;
extern const Feature kOffloadActivations;
extern const Feature kDelayedUpdate;
extern const Feature kDeviceUpdatedUnits;
extern const Feature kResidentUnits;
extern const Feature kRecomputeSegments;
extern const Feature kCompressedSegments;
extern const Feature kOffloadedOptimal;
extern const Feature kActivationCompression;

// How the weights are trained.
extern const Feature kBf16Pure;
extern const Feature kLossScaling;
extern const Feature kSpikeGuard;
extern const Feature kGradientClipValue;
extern const Feature kWholeTensorOptimizer;
extern const Feature kOtherThanAdamW;
extern const Feature kNoAdamMoments;
extern const Feature kNoParameterMoments;
extern const Feature kNoMupRates;
extern const Feature kLars;
extern const Feature kScheduleFree;
extern const Feature kOtherThanConstant;

// The network.
extern const Feature kImport;
extern const Feature kNetworkInitialization;
extern const Feature kNormFreeInitialization;
extern const Feature kBranchScaling;
extern const Feature kFixup;
extern const Feature kMup;
extern const Feature kLlama;
extern const Feature kOtherThanLlama;
extern const Feature kEncoder;
extern const Feature kDecoder;
extern const Feature kBert;
extern const Feature kVit;
extern const Feature kCausalHead;
extern const Feature kEncoderHead;
extern const Feature kTokenHead;
extern const Feature kMaskedHead;
extern const Feature kNorms;
extern const Feature kNotPostNorm;
extern const Feature kNotPreNorm;
extern const Feature kPostNorm;
extern const Feature kTiedWithoutNorm;
extern const Feature kDropout;
extern const Feature kAttentionDropout;
extern const Feature kKvHeads;
extern const Feature kHeadWidth;
extern const Feature kRopeScaling;
extern const Feature kSlidingWindow;
extern const Feature kQkvBias;
extern const Feature kSquaredRelu;
extern const Feature kOtherThanSquaredRelu;
extern const Feature kEmbeddingWidth;
extern const Feature kNoBlocks;
extern const Feature kDistinctBlocks;
extern const Feature kExperts;
extern const Feature kFreeze;
extern const Feature kUnevenFreeze;
extern const Feature kFrozenAttentionOutputs;
extern const Feature kFrozenMlpOutputs;
extern const Feature kReadFrozenWeights;

// The data.
extern const Feature kNoConcatenation;
extern const Feature kMaskDocuments;
extern const Feature kPlainText;
extern const Feature kTextClasses;
extern const Feature kParsedTokens;
extern const Feature kSecondText;

}  // namespace weft::features
