declare <4 x float> @llvm.masked.load.v4f32.p0(ptr, i32, <4 x i1>, <4 x float>)
declare void @llvm.masked.store.v4f32.p0(<4 x float>, ptr, i32, <4 x i1>)

define void @piece(ptr noalias %y, ptr noalias %bias, ptr noalias %residual, i64 %tokens, ptr noalias %inputs, ptr noalias %outputs, i64 %image, i64 %start, i64 %first, i64 %last, i64 %block) nounwind {
entry:
  %slot8 = alloca i64
  %slot24 = alloca i64
  %slot48 = alloca i64
  %v1 = add i64 %start, 8
  %v2 = icmp slt i64 %v1, 33
  %v3 = select i1 %v2, i64 %v1, i64 33
  %v4 = mul i64 %image, 24
  %v5 = udiv i64 %start, 7
  %v6 = add i64 %v3, 6
  %v7 = udiv i64 %v6, 7
  store i64 %v5, ptr %slot8
  br label %head9
head9:
  %v12 = load i64, ptr %slot8
  %v13 = icmp slt i64 %v12, %v7
  br i1 %v13, label %body10, label %end11
body10:
  %v14 = mul i64 %v12, 7
  %v15 = icmp sgt i64 %start, %v14
  %v16 = select i1 %v15, i64 %start, i64 %v14
  %v17 = add i64 %v14, 5
  %v18 = icmp slt i64 %v3, %v17
  %v19 = select i1 %v18, i64 %v3, i64 %v17
  %v20 = sub i64 %v19, %v16
  %v21 = icmp sgt i64 %v20, 0
  br i1 %v21, label %then22, label %join23
then22:
  store i64 %first, ptr %slot24
  br label %head25
head25:
  %v28 = load i64, ptr %slot24
  %v29 = icmp slt i64 %v28, %last
  br i1 %v29, label %body26, label %end27
body26:
  %v30 = sub i64 %v28, %first
  %v31 = mul i64 %v30, 8
  %v32 = getelementptr float, ptr %outputs, i64 %v31
  %v33 = sub i64 %v16, %start
  %v34 = getelementptr float, ptr %v32, i64 %v33
  %v35 = add i64 %v4, %v28
  %v36 = mul i64 %v35, 5
  %v37 = add i64 %v36, %v12
  %v38 = mul i64 %v37, 5
  %v39 = sub i64 %v16, %v14
  %v40 = add i64 %v38, %v39
  %v41 = getelementptr float, ptr %bias, i64 %v28
  %v42 = load float, ptr %v41, align 4
  %v43 = insertelement <4 x float> poison, float %v42, i64 0
  %v44 = shufflevector <4 x float> %v43, <4 x float> poison, <4 x i32> zeroinitializer
  %v45 = icmp sge i64 %v20, 4
  br i1 %v45, label %then46, label %join47
then46:
  store i64 0, ptr %slot48
  br label %head49
head49:
  %v52 = load i64, ptr %slot48
  %v53 = icmp slt i64 %v52, %v20
  br i1 %v53, label %body50, label %end51
body50:
  %v54 = sub i64 %v20, 4
  %v55 = icmp slt i64 %v52, %v54
  %v56 = select i1 %v55, i64 %v52, i64 %v54
  %v57 = getelementptr float, ptr %v34, i64 %v56
  %v58 = load <4 x float>, ptr %v57, align 4
  %v59 = add i64 %v40, %v56
  %v60 = fadd <4 x float> %v58, %v44
  %v61 = getelementptr float, ptr %y, i64 %v59
  store <4 x float> %v60, ptr %v61, align 4
  %v62 = add nsw i64 %v52, 4
  store i64 %v62, ptr %slot48
  br label %head49
end51:
  br label %join47
join47:
  %v63 = icmp slt i64 %v20, 4
  br i1 %v63, label %then64, label %join65
then64:
  %v66 = insertelement <4 x i64> poison, i64 %v20, i64 0
  %v67 = shufflevector <4 x i64> %v66, <4 x i64> poison, <4 x i32> zeroinitializer
  %v68 = icmp slt <4 x i64> <i64 0, i64 1, i64 2, i64 3>, %v67
  %v69 = getelementptr float, ptr %v34, i64 0
  %v70 = call <4 x float> @llvm.masked.load.v4f32.p0(ptr %v69, i32 4, <4 x i1> %v68, <4 x float> <float 0x0000000000000000, float 0x0000000000000000, float 0x0000000000000000, float 0x0000000000000000>)
  %v71 = fadd <4 x float> %v70, %v44
  %v72 = getelementptr float, ptr %y, i64 %v40
  call void @llvm.masked.store.v4f32.p0(<4 x float> %v71, ptr %v72, i32 4, <4 x i1> %v68)
  br label %join65
join65:
  %v73 = add nsw i64 %v28, 1
  store i64 %v73, ptr %slot24
  br label %head25
end27:
  br label %join23
join23:
  %v74 = add nsw i64 %v12, 1
  store i64 %v74, ptr %slot8
  br label %head9
end11:
  ret void
}
