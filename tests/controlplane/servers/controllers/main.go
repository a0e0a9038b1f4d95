// Controllers runs three of the controllers of kube-controller-manager, as it does: the end of namespaces, garbage collection
// and the aggregation of roles. Its forty others take longer to compile than all of helm and promtool.
package main

import (
	"context"
	"fmt"
	"os"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/controller-manager/pkg/informerfactory"
	"k8s.io/kubernetes/pkg/controller/clusterroleaggregation"
	"k8s.io/kubernetes/pkg/controller/garbagecollector"
	"k8s.io/kubernetes/pkg/controller/namespace"
)

const (
	resync     = 12 * time.Hour
	syncPeriod = 30 * time.Second
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: controllers KUBECONFIG")
		os.Exit(2)
	}
	if err := run(context.Background(), os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// run returns only if the controllers cannot be started.
func run(ctx context.Context, kubeconfig string) error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	// The end of a namespace takes a call for each kind of object.
	config.QPS, config.Burst = 400, 3000
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	objects, err := metadata.NewForConfig(config)
	if err != nil {
		return err
	}
	typed := informers.NewSharedInformerFactory(client, resync)
	watched := informerfactory.NewInformerFactory(typed, metadatainformer.NewSharedInformerFactory(objects, resync))
	mapper := restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(client.Discovery()))
	areWatched := make(chan struct{})
	garbage, err := garbagecollector.NewGarbageCollector(
		ctx, client, objects, mapper, garbagecollector.DefaultIgnoredResources(), watched, areWatched,
	)
	if err != nil {
		return err
	}
	kinds := client.Discovery().ServerPreferredNamespacedResources
	namespaces := namespace.NewNamespaceController(
		ctx, client, objects, kinds, typed.Core().V1().Namespaces(), 5*time.Minute, v1.FinalizerKubernetes,
	)
	roles := clusterroleaggregation.NewClusterRoleAggregation(typed.Rbac().V1().ClusterRoles(), client.RbacV1())
	go namespaces.Run(ctx, 10)
	go garbage.Run(ctx, 20, syncPeriod)
	go garbage.Sync(ctx, client.Discovery(), syncPeriod)
	go roles.Run(ctx, 5)
	watched.Start(ctx.Done())
	close(areWatched)
	<-ctx.Done()
	return nil
}
